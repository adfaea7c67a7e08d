/* Records as canonical bytes: FORMAT.md, "Digest". */
#include "functions.h"
#include "records.h"

#define OFFSET 1
#define TIMESTAMP 2
#define TIMESTAMP_TYPE 4
#define CONTENTS 8

static inline uint8_t *
put_big_endian(uint8_t *to, uint64_t number, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--) {
        to[i] = (uint8_t)number;
        number >>= 8;
    }
    return to + bytes;
}

static inline uint8_t *
put_field(uint8_t *to, const struct contents *contents, int64_t row)
{
    if (is_null(contents, row)) {
        *to = 0;
        return to + 1;
    }
    size_t length = (size_t)length_of(contents, row);
    *to = 1;
    to = put_big_endian(to + 1, length, 8);
    memcpy(to, contents->bytes + contents->ends[row], length);
    return to + length;
}

static uint8_t *
put_record(uint8_t *to, const struct records *records, int64_t row, int parts)
{
    if (parts & OFFSET) {
        to = put_big_endian(to, (uint64_t)records->offsets[row], 8);
    }
    if (parts & TIMESTAMP) {
        to = put_big_endian(to, (uint64_t)records->timestamps[row], 8);
    }
    if (parts & TIMESTAMP_TYPE) {
        *to++ = (uint8_t)records->timestamp_types[row];
    }
    if (!(parts & CONTENTS)) {
        return to;
    }
    to = put_field(to, &records->keys, row);
    to = put_field(to, &records->values, row);
    int32_t first = records->header_ends[row], end = records->header_ends[row + 1];
    to = put_big_endian(to, (uint64_t)(end - first), 4);
    for (int32_t header = first; header < end; header++) {
        to = put_field(to, &records->header_keys, header);
        to = put_field(to, &records->header_values, header);
    }
    return to;
}

/* What rows [first, end) of a column take. */
static size_t
size_of(const struct contents *contents, int64_t first, int64_t end)
{
    if (contents->valid == NULL) {
        return (size_t)(end - first) * 9 + (size_t)(contents->ends[end] - contents->ends[first]);
    }
    size_t size = 0;
    for (int64_t row = first; row < end; row++) {
        size += is_null(contents, row) ? 1 : 9 + (size_t)length_of(contents, row);
    }
    return size;
}

static size_t
stream_size(const struct records *records, int parts)
{
    size_t count = (size_t)records->count, size = 0;
    size += parts & OFFSET ? 8 * count : 0;
    size += parts & TIMESTAMP ? 8 * count : 0;
    size += parts & TIMESTAMP_TYPE ? count : 0;
    if (count == 0 || !(parts & CONTENTS)) {
        return size;
    }
    int32_t first = records->header_ends[0], end = records->header_ends[count];
    size += 4 * count + size_of(&records->keys, 0, records->count) + size_of(&records->values, 0, records->count);
    if (end > first) {
        size += size_of(&records->header_keys, first, end) + size_of(&records->header_values, first, end);
    }
    return size;
}

static PyObject *
stream(const struct records *records, int parts)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)stream_size(records, parts));
    if (bytes == NULL) {
        return NULL;
    }
    uint8_t *to = (uint8_t *)PyBytes_AsString(bytes);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < records->count; row++) {
        to = put_record(to, records, row, parts);
    }
    Py_END_ALLOW_THREADS
    return bytes;
}

PyObject *
canonical_stream(PyObject *module, PyObject *batch)
{
    (void)module;
    struct records records;
    int opened = open_records(batch, &records);
    if (opened <= 0) {
        return opened < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *bytes = stream(&records, OFFSET | TIMESTAMP | TIMESTAMP_TYPE | CONTENTS);
    Py_DECREF(records.capsules);
    return bytes;
}

PyObject *
digest_streams(PyObject *module, PyObject *batch)
{
    (void)module;
    struct records records;
    int opened = open_records(batch, &records);
    if (opened <= 0) {
        return opened < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *content = stream(&records, TIMESTAMP | CONTENTS);
    PyObject *positions = stream(&records, OFFSET | TIMESTAMP_TYPE);
    PyObject *both = content != NULL && positions != NULL ? PyTuple_Pack(2, content, positions) : NULL;
    Py_XDECREF(content);
    Py_XDECREF(positions);
    Py_DECREF(records.capsules);
    return both;
}
