/* A line on stderr where the process ends by a fault. It comes after the dump of Python's faulthandler, which calls the
   handler that was there before its own. */
#include "functions.h"

#include <signal.h>
#include <unistd.h>

static const char explanation[] =
    "blockgz: its C extension was in use; BLOCKGZ_NO_KERNEL=1 in the environment runs without it\n";

static void
on_fault(int number)
{
    struct sigaction as_default = {.sa_handler = SIG_DFL};
    ssize_t written = write(STDERR_FILENO, explanation, sizeof explanation - 1);
    (void)written;
    sigaction(number, &as_default, NULL);
    raise(number);
}

PyObject *
explain_crashes(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER | SA_ONSTACK};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sigaction(faults[i], &action, NULL);
    }
    return Py_NewRef(Py_None);
}
