/* index_format._kernel: its functions, each of which index_format has in Python as well. */
#include "functions.h"

/* Raised with every change of what a function takes or gives; index_format/kernel_choice.py says the one it knows. */
#define INTERFACE 2

static int
module_exec(PyObject *module)
{
    if (refuse_if_unwanted() < 0) {
        return -1;
    }
    prepare_encoder();
    prepare_decoder();
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyMethodDef functions[] = {
    {"encode_json_lines", encode_json_lines, METH_VARARGS, "batch, timestamp_type -> lines and their ends, or None"},
    {"decode_json_lines", decode_json_lines, METH_VARARGS, "lines, timestamp_type -> a pair of capsules, or None"},
    {"count_lines", count_lines, METH_O, "bytes -> how many newlines they have"},
    {"canonical_stream", canonical_stream, METH_O, "batch -> canonical bytes, or None"},
    {"digest_streams", digest_streams, METH_O, "batch -> the bytes of contents and of positions, or None"},
    {"record_batches", record_batches, METH_VARARGS, "batch, most bytes -> Kafka's record batches, or None"},
    {"explain_crashes", explain_crashes, METH_NOARGS, "a line on stderr where the process ends by a fault"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "index_format._kernel",
    .m_doc = "Record format json, the records' digest and Kafka's record batches in C; index_format/kernel/README.md.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&module_def);
}
