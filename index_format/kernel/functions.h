/* What module.c gives to Python. Each function is described in README.md. */
#ifndef BLOCKGZ_FUNCTIONS_H
#define BLOCKGZ_FUNCTIONS_H

#include "module.h"

void prepare_encoder(void);
void prepare_decoder(void);

PyObject *encode_json_lines(PyObject *module, PyObject *arguments);
PyObject *decode_json_lines(PyObject *module, PyObject *arguments);
PyObject *count_lines(PyObject *module, PyObject *raw);
PyObject *explain_crashes(PyObject *module, PyObject *nothing);
PyObject *canonical_stream(PyObject *module, PyObject *batch);
PyObject *digest_streams(PyObject *module, PyObject *batch);
PyObject *record_batches(PyObject *module, PyObject *arguments);

#endif
