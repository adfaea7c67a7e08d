/* Records as Kafka's record batches of magic 2. What comes before the attributes, which needs a checksum of the rest, is
   left to the caller. */
#include "functions.h"
#include "records.h"

enum { START = 21, HEAD = START + 40, LOG_APPEND_TIME = 1, TIME_OF_LOG = 8 };

struct batch {
    int64_t first, end; /* rows */
    size_t size;        /* of its records */
    int64_t latest;
};

static inline uint64_t
zigzag(int64_t number)
{
    return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
}

static inline size_t
varint_size(int64_t number)
{
    return (size_t)(70 - __builtin_clzll(zigzag(number) | 1)) / 7;
}

static inline uint8_t *
put_varint(uint8_t *to, int64_t number)
{
    uint64_t left = zigzag(number);
    for (; left > 0x7f; left >>= 7) {
        *to++ = (uint8_t)left | 0x80;
    }
    *to++ = (uint8_t)left;
    return to;
}

static inline uint8_t *
put_number(uint8_t *to, uint64_t number, int size)
{
    for (int byte = size - 1; byte >= 0; byte--, number >>= 8) {
        to[byte] = (uint8_t)number;
    }
    return to + size;
}

/* Timestamps may be any number: their difference wraps around, and a reader's sum does too. */
static inline int64_t
difference(int64_t one, int64_t other)
{
    return (int64_t)((uint64_t)one - (uint64_t)other);
}

static inline size_t
content_size(const struct contents *contents, int64_t row)
{
    int64_t length = is_null(contents, row) ? -1 : length_of(contents, row);
    return varint_size(length) + (size_t)(length > 0 ? length : 0);
}

static inline uint8_t *
put_content(uint8_t *to, const struct contents *contents, int64_t row)
{
    int64_t length = is_null(contents, row) ? -1 : length_of(contents, row);
    to = put_varint(to, length);
    if (length > 0) {
        memcpy(to, contents->bytes + contents->ends[row], (size_t)length);
        to += length;
    }
    return to;
}

/* What the record takes without its own length. */
static size_t
record_size(const struct records *records, int64_t first, int64_t row)
{
    int32_t header = records->header_ends[row], end = records->header_ends[row + 1];
    size_t size = 1 + varint_size(difference(records->timestamps[row], records->timestamps[first]));
    size += varint_size(records->offsets[row] - records->offsets[first]) + varint_size(end - header);
    size += content_size(&records->keys, row) + content_size(&records->values, row);
    for (; header < end; header++) {
        size += content_size(&records->header_keys, header) + content_size(&records->header_values, header);
    }
    return size;
}

/* The batch that begins at a row: of one type of timestamps, and of one time of the log. */
static struct batch
batch_from(const struct records *records, int64_t first, size_t most)
{
    struct batch found = {.first = first, .latest = records->timestamps[first]};
    int8_t type = records->timestamp_types[first];
    int64_t row = first;
    for (; row < records->count; row++) {
        int64_t timestamp = records->timestamps[row];
        if (records->timestamp_types[row] != type || (type == LOG_APPEND_TIME && timestamp != found.latest) ||
            records->offsets[row] - records->offsets[first] > INT32_MAX) {
            break;
        }
        size_t size = record_size(records, first, row);
        size += varint_size((int64_t)size);
        if (row > first && found.size + size > most) {
            break;
        }
        found.size += size;
        found.latest = timestamp > found.latest ? timestamp : found.latest;
    }
    found.end = row;
    return found;
}

static void
put_batch(uint8_t *to, const struct records *records, const struct batch *batch)
{
    int64_t first = batch->first, base = records->offsets[first];
    to = put_number(to + START, records->timestamp_types[first] == LOG_APPEND_TIME ? TIME_OF_LOG : 0, 2);
    to = put_number(to, (uint64_t)(records->offsets[batch->end - 1] - base), 4);
    to = put_number(to, (uint64_t)records->timestamps[first], 8);
    to = put_number(to, (uint64_t)batch->latest, 8);
    memset(to, 0xff, 14); /* no producer: its id, epoch and sequence */
    to = put_number(to + 14, (uint64_t)(batch->end - first), 4);
    for (int64_t row = first; row < batch->end; row++) {
        int32_t header = records->header_ends[row], end = records->header_ends[row + 1];
        to = put_varint(to, (int64_t)record_size(records, first, row));
        *to++ = 0;
        to = put_varint(to, difference(records->timestamps[row], records->timestamps[first]));
        to = put_varint(to, records->offsets[row] - base);
        to = put_content(to, &records->keys, row);
        to = put_content(to, &records->values, row);
        to = put_varint(to, end - header);
        for (; header < end; header++) {
            to = put_content(to, &records->header_keys, header);
            to = put_content(to, &records->header_values, header);
        }
    }
}

static int
append_batches(PyObject *list, const struct records *records, size_t most)
{
    for (int64_t first = 0; first < records->count;) {
        struct batch batch;
        Py_BEGIN_ALLOW_THREADS
        batch = batch_from(records, first, most);
        Py_END_ALLOW_THREADS
        PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(HEAD + batch.size));
        if (bytes == NULL) {
            return -1;
        }
        uint8_t *to = (uint8_t *)PyByteArray_AsString(bytes);
        Py_BEGIN_ALLOW_THREADS
        put_batch(to, records, &batch);
        Py_END_ALLOW_THREADS
        PyObject *entry = Py_BuildValue("(LLN)", (long long)records->offsets[first],
                                        (long long)records->offsets[batch.end - 1], bytes);
        int failed = entry == NULL || PyList_Append(list, entry) < 0;
        Py_XDECREF(entry);
        if (failed) {
            return -1;
        }
        first = batch.end;
    }
    return 0;
}

PyObject *
record_batches(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *batch;
    Py_ssize_t most;
    struct records records;
    if (!PyArg_ParseTuple(arguments, "On", &batch, &most)) {
        return NULL;
    }
    int found = open_records(batch, &records);
    if (found <= 0) {
        return found < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *list = PyList_New(0);
    if (list != NULL && append_batches(list, &records, (size_t)(most > 0 ? most : 0)) < 0) {
        Py_CLEAR(list);
    }
    Py_DECREF(records.capsules);
    return list;
}
