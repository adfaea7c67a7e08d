/* blockgz.kafka._kernel: its functions, each of which has a substitute in Python. */
#include "kernel.h"

/* Raised with every change of what a function takes or gives; blockgz/kafka/fetching.py says the one it
   knows. */
#define INTERFACE 1

static int
module_exec(PyObject *module)
{
    if (refuse_if_unwanted() < 0 || load_librdkafka() < 0) {
        return -1;
    }
    if (add_consumer(module) < 0 || add_producer(module) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "blockgz.kafka._kernel",
    .m_doc = "Batches from and to librdkafka in C; blockgz/kafka/kernel/README.md.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&module_def);
}
