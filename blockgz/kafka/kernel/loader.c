/* Finds librdkafka's functions in the library that confluent-kafka has loaded, so that there is one in the process. */
#include "kernel.h"

#include <dlfcn.h>

struct librdkafka rdkafka;

/* rd_kafka_version() is 0xMMmmrrpp. librdkafka keeps its public functions and structures within a major version;
   what is declared here was tried from 2.16 on. */
enum { LEAST_VERSION = 0x02100000, NEXT_MAJOR_VERSION = 0x03000000 };

static const struct {
    const char *name;
    size_t at;
} functions[] = {
#define NAME_AND_PLACE(result, name, arguments) {"rd_kafka_" #name, offsetof(struct librdkafka, name)},
    LIBRDKAFKA_FUNCTIONS(NAME_AND_PLACE)
#undef NAME_AND_PLACE
};

static int
find_functions(const char *path)
{
    /* The extension module is loaded already; dlsym looks into what it depends on, too. The handle is kept. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        PyErr_Format(PyExc_ImportError, "librdkafka cannot be reached: %s", dlerror());
        return -1;
    }
    for (size_t number = 0; number < sizeof functions / sizeof *functions; number++) {
        void *found = dlsym(library, functions[number].name);
        if (found == NULL) {
            PyErr_Format(PyExc_ImportError, "librdkafka has no %s", functions[number].name);
            return -1;
        }
        memcpy((char *)&rdkafka + functions[number].at, &found, sizeof found);
    }
    int version = rdkafka.version();
    if (version < LEAST_VERSION || version >= NEXT_MAJOR_VERSION) {
        PyErr_Format(PyExc_ImportError, "librdkafka %s is not known to the kernel", rdkafka.version_str());
        return -1;
    }
    return 0;
}

int
load_librdkafka(void)
{
    PyObject *module = PyImport_ImportModule("confluent_kafka.cimpl");
    PyObject *file = module ? PyObject_GetAttrString(module, "__file__") : NULL;
    PyObject *path = NULL;
    int result = -1;
    if (file != NULL && PyUnicode_FSConverter(file, &path)) {
        result = find_functions(PyBytes_AsString(path));
    }
    Py_XDECREF(path);
    Py_XDECREF(file);
    Py_XDECREF(module);
    return result;
}
