/* Records of a pyarrow.RecordBatch of index_format/records.py's schema, where they lie. */
#ifndef BLOCKGZ_RECORDS_H
#define BLOCKGZ_RECORDS_H

#include "module.h"

#include "arrow_c_data.h"

/* Keys, values, and both of headers. */
struct contents {
    const uint8_t *valid; /* NULL where none is null */
    int64_t first;        /* the bit of row 0 in `valid` */
    const int32_t *ends;  /* row i reaches from ends[i] to ends[i + 1] */
    const uint8_t *bytes;
    const uint8_t *readable; /* up to here: contents of rows that a slice leaves out as well */
};

struct records {
    PyObject *capsules; /* keep all below alive */
    int64_t count;
    const int64_t *offsets;
    const int64_t *timestamps;
    const int8_t *timestamp_types;
    struct contents keys;
    struct contents values;
    const int32_t *header_ends; /* the headers of row i are header_ends[i] to header_ends[i + 1] */
    struct contents header_keys;
    struct contents header_values;
};

static inline int
is_null(const struct contents *contents, int64_t row)
{
    int64_t bit = contents->first + row;
    return contents->valid != NULL && !(contents->valid[bit >> 3] >> (bit & 7) & 1);
}

/* Of rows [0, count), nulls apart. */
static inline int64_t
length_of(const struct contents *contents, int64_t row)
{
    return (int64_t)contents->ends[row + 1] - contents->ends[row];
}

static inline int
has_fields(const struct ArrowSchema *schema, int64_t count, const char *const *formats, const char *const *names)
{
    if (schema->n_children != count) {
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        const struct ArrowSchema *child = schema->children[i];
        if (strcmp(child->format, formats[i]) != 0 || strcmp(child->name, names[i]) != 0 || child->dictionary != NULL) {
            return 0;
        }
    }
    return 1;
}

static inline int
is_of_records(const struct ArrowSchema *schema)
{
    static const char *const formats[] = {"l", "l", "c", "z", "z", "+l"};
    static const char *const names[] = {"offset", "timestamp", "timestamp_type", "key", "value", "headers"};
    static const char *const header_formats[] = {"u", "z"};
    static const char *const header_names[] = {"key", "value"};
    if (strcmp(schema->format, "+s") != 0 || !has_fields(schema, 6, formats, names)) {
        return 0;
    }
    const struct ArrowSchema *headers = schema->children[5];
    return headers->n_children == 1 && strcmp(headers->children[0]->format, "+s") == 0 &&
           has_fields(headers->children[0], 2, header_formats, header_names);
}

static inline int
has_nulls(const struct ArrowArray *array)
{
    return array->null_count != 0 && array->buffers[0] != NULL;
}

static inline struct contents
contents_of(const struct ArrowArray *array, int64_t offset)
{
    const uint8_t *bytes = array->buffers[2] == NULL ? (const uint8_t *)"" : array->buffers[2];
    const int32_t *ends = (const int32_t *)array->buffers[1] + array->offset;
    return (struct contents){
        .valid = array->null_count == 0 ? NULL : array->buffers[0],
        .first = array->offset + offset,
        .ends = ends + offset,
        .bytes = bytes,
        .readable = bytes + (array->length ? ends[array->length] : 0),
    };
}

/* Null, or perhaps null, where the schema has no nulls. */
static inline int
has_unfit_nulls(const struct ArrowArray *array)
{
    struct ArrowArray **columns = array->children;
    struct ArrowArray *headers = columns[5];
    struct ArrowArray *items = headers->children[0];
    return has_nulls(array) || has_nulls(columns[0]) || has_nulls(columns[1]) || has_nulls(columns[2]) ||
           has_nulls(headers) || has_nulls(items) || has_nulls(items->children[0]);
}

/* -1 with ValueError if a column of an array `is_of_records` has fewer rows than the array, or if it was moved. */
static inline int
check_lengths(const struct ArrowArray *array)
{
    int fits = array->release != NULL && array->length >= 0 && array->offset >= 0 && array->n_children == 6;
    int64_t end = fits ? array->offset + array->length : 0;
    for (int64_t i = 0; fits && i < 6; i++) {
        fits = array->children[i]->length >= end;
    }
    if (fits && array->length > 0) {
        const struct ArrowArray *headers = array->children[5], *items = headers->children[0];
        int64_t count = ((const int32_t *)headers->buffers[1])[headers->offset + end];
        fits = items->length >= count && items->children[0]->length >= items->offset + count &&
               items->children[1]->length >= items->offset + count;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the columns of a batch of records are not as long as the batch");
    }
    return fits ? 0 : -1;
}

/* The columns of an array `is_of_records`, borrowed from it; none where it is empty. */
static inline struct records
columns_of(const struct ArrowArray *array)
{
    struct records found = {.count = array->length};
    struct ArrowArray **columns = array->children;
    struct ArrowArray *headers = columns[5];
    struct ArrowArray *items = headers->children[0];
    int64_t offset = array->offset;
    if (found.count == 0) {
        return found;
    }
    found.offsets = (const int64_t *)columns[0]->buffers[1] + columns[0]->offset + offset;
    found.timestamps = (const int64_t *)columns[1]->buffers[1] + columns[1]->offset + offset;
    found.timestamp_types = (const int8_t *)columns[2]->buffers[1] + columns[2]->offset + offset;
    found.keys = contents_of(columns[3], offset);
    found.values = contents_of(columns[4], offset);
    found.header_ends = (const int32_t *)headers->buffers[1] + headers->offset + offset;
    found.header_keys = contents_of(items->children[0], items->offset);
    found.header_values = contents_of(items->children[1], items->offset);
    return found;
}

/* 1 and the records of a batch, 0 where its columns are of other types or null where they must not be, -1 with an
   exception. After 1 `capsules` is a reference that the caller gives back. Needs the interpreter's lock. */
static inline int
open_records(PyObject *batch, struct records *records)
{
    memset(records, 0, sizeof *records);
    PyObject *capsules = PyObject_CallMethod(batch, "__arrow_c_array__", NULL);
    if (capsules == NULL) {
        return -1;
    }
    int found = -1;
    if (PyTuple_Check(capsules) && PyTuple_Size(capsules) == 2) {
        const struct ArrowSchema *schema = PyCapsule_GetPointer(PyTuple_GetItem(capsules, 0), "arrow_schema");
        const struct ArrowArray *array =
            schema == NULL ? NULL : PyCapsule_GetPointer(PyTuple_GetItem(capsules, 1), "arrow_array");
        if (array != NULL) {
            found = is_of_records(schema) && !has_unfit_nulls(array);
            if (found && check_lengths(array) < 0) {
                found = -1;
            }
            if (found == 1) {
                *records = columns_of(array);
            }
        }
    }
    else {
        PyErr_SetString(PyExc_TypeError, "__arrow_c_array__ gave no pair of capsules");
    }
    if (found == 1) {
        records->capsules = capsules;
    }
    else {
        Py_DECREF(capsules);
    }
    return found;
}

#endif
