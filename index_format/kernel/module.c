/* index_format._kernel: its functions, each of which index_format has in Python as well. */
#include "module.h"

/* Raised with every change of what a function takes or gives; index_format/kernel_choice.py says the one it knows. */
#define INTERFACE 1

static int
module_exec(PyObject *module)
{
    if (refuse_if_unwanted() < 0) {
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
    .m_name = "index_format._kernel",
    .m_doc = "Record format json and the records' digest in C; index_format/kernel/README.md.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&module_def);
}
