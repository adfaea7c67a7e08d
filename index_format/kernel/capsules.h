/* An Arrow array of records as the two PyCapsules of the C data interface. */
#ifndef BLOCKGZ_CAPSULES_H
#define BLOCKGZ_CAPSULES_H

#include "module.h"

#include "arrow_c_data.h"

static void
free_schema_capsule(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release != NULL) {
        schema->release(schema);
    }
    free(schema);
}

static void
free_array_capsule(PyObject *capsule)
{
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release != NULL) {
        array->release(array);
    }
    free(array);
}

static inline PyObject *
schema_capsule_of_records(void)
{
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    if (schema == NULL || arrow_make_records_schema(schema) < 0) {
        free(schema);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", free_schema_capsule);
    if (capsule == NULL) {
        schema->release(schema);
        free(schema);
    }
    return capsule;
}

/* Takes the array over, also where it fails. */
static inline PyObject *
array_capsule_of(struct ArrowArray taken)
{
    struct ArrowArray *array = malloc(sizeof *array);
    PyObject *capsule = NULL;
    if (array != NULL) {
        *array = taken;
        capsule = PyCapsule_New(array, "arrow_array", free_array_capsule);
    }
    else {
        PyErr_NoMemory();
    }
    if (capsule == NULL) {
        taken.release(&taken);
        free(array);
    }
    return capsule;
}

/* (schema, array) of records; NULL with an exception. Takes the array over, also where it fails. */
static inline PyObject *
capsules_of_records(struct ArrowArray taken)
{
    PyObject *array = array_capsule_of(taken);
    PyObject *schema = array == NULL ? NULL : schema_capsule_of_records();
    PyObject *both = schema == NULL ? NULL : PyTuple_Pack(2, schema, array);
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return both;
}

#endif
