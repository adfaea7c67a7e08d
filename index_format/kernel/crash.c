/* A line on stderr if the process ends by a fault in one of our C extensions, or in what it called. It comes after the
   dump of Python's faulthandler, which calls the handler that was there before its own. */
#define _GNU_SOURCE
#include "functions.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#else
#define backtrace(frames, most) 0 /* musl: nothing says whose fault it is */
#endif

enum { MOST_FRAMES = 256 };

static const char explanation[] =
    "blockgz: its C extension was in use; BLOCKGZ_NO_KERNEL=1 in the environment runs without it\n";

static void
on_fault(int number)
{
    struct sigaction as_default = {.sa_handler = SIG_DFL};
    sigaction(number, &as_default, NULL); /* first, because reading a damaged stack may fail in the same way */
    void *frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES);
    for (int i = 1; i < count; i++) { /* 0 is this function */
        Dl_info in;
        if (dladdr(frames[i], &in) && in.dli_fname != NULL &&
            (strstr(in.dli_fname, "index_format/_kernel.") || strstr(in.dli_fname, "blockgz/kafka/_kernel."))) {
            ssize_t written = write(STDERR_FILENO, explanation, sizeof explanation - 1);
            (void)written;
            break;
        }
    }
    raise(number);
}

PyObject *
explain_crashes(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER | SA_ONSTACK};
    void *frame;
    (void)backtrace(&frame, 1); /* its first call loads a library, which a handler must not */
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sigaction(faults[i], &action, NULL);
    }
    return Py_NewRef(Py_None);
}
