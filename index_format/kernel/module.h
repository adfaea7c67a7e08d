/* What both extension modules have in common: how they begin. */
#ifndef BLOCKGZ_MODULE_H
#define BLOCKGZ_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

/* -1 with ImportError where the user wants to do without. */
static inline int
refuse_if_unwanted(void)
{
    const char *wanted = getenv("BLOCKGZ_NO_KERNEL");
    if (wanted == NULL || *wanted == '\0' || strcmp(wanted, "0") == 0) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "BLOCKGZ_NO_KERNEL is set");
    return -1;
}

#endif
