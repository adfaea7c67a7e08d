/* Rows of a batch, read from its Arrow data where it lies, handed to librdkafka one by one. */
#include "batch_rows.h"

int
batch_rows_open(struct records *rows, PyObject *schema_capsule, PyObject *array_capsule)
{
    const struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
    const struct ArrowArray *array = schema ? PyCapsule_GetPointer(array_capsule, "arrow_array") : NULL;
    if (array == NULL) {
        return -1;
    }
    if (schema->release == NULL || !is_of_records(schema)) {
        PyErr_SetString(PyExc_TypeError, "a batch of another schema than records have");
        return -1;
    }
    if (check_lengths(array) < 0) {
        return -1;
    }
    *rows = columns_of(array);
    return 0;
}

/* NULL for null, never for what is empty. */
static inline void *
bytes_at(const struct contents *column, int64_t row, size_t *size)
{
    *size = is_null(column, row) ? 0 : (size_t)length_of(column, row);
    return is_null(column, row) ? NULL : (void *)(column->bytes + column->ends[row]);
}

static rd_kafka_headers_t *
headers_at(const struct records *rows, int64_t row)
{
    int32_t start = rows->header_ends[row], end = rows->header_ends[row + 1];
    rd_kafka_headers_t *headers = rdkafka.headers_new((size_t)(end - start));
    for (int32_t number = start; number < end; number++) {
        size_t key_size, size;
        const char *key = bytes_at(&rows->header_keys, number, &key_size);
        const void *value = bytes_at(&rows->header_values, number, &size);
        rdkafka.header_add(headers, key ? key : "", (ssize_t)key_size, value, (ssize_t)size);
    }
    return headers;
}

int64_t
batch_rows_produce(const struct records *rows, rd_kafka_t *handle, rd_kafka_topic_t *topic, int32_t partition,
                   int64_t first, rd_kafka_error_t **error)
{
    enum { IN_TOPIC, IN_PARTITION, FLAGS, TIME, THE_KEY, THE_VALUE, WITHOUT_HEADERS, THE_HEADERS = WITHOUT_HEADERS, ALL };
    rd_kafka_vu_t told[ALL];
    told[IN_TOPIC].vtype = RD_KAFKA_VTYPE_RKT;
    told[IN_TOPIC].u.rkt = topic;
    told[IN_PARTITION].vtype = RD_KAFKA_VTYPE_PARTITION;
    told[IN_PARTITION].u.i32 = partition;
    told[FLAGS].vtype = RD_KAFKA_VTYPE_MSGFLAGS;
    told[FLAGS].u.i = RD_KAFKA_MSG_F_COPY;
    told[TIME].vtype = RD_KAFKA_VTYPE_TIMESTAMP;
    told[THE_KEY].vtype = RD_KAFKA_VTYPE_KEY;
    told[THE_VALUE].vtype = RD_KAFKA_VTYPE_VALUE;
    told[THE_HEADERS].vtype = RD_KAFKA_VTYPE_HEADERS;
    *error = NULL;
    int64_t row = first;
    for (; row < rows->count; row++) {
        int has_headers = rows->header_ends[row] < rows->header_ends[row + 1];
        told[TIME].u.i64 = rows->timestamps[row];
        told[THE_KEY].u.mem.mem = bytes_at(&rows->keys, row, &told[THE_KEY].u.mem.size);
        told[THE_VALUE].u.mem.mem = bytes_at(&rows->values, row, &told[THE_VALUE].u.mem.size);
        told[THE_HEADERS].u.headers = has_headers ? headers_at(rows, row) : NULL;
        *error = rdkafka.produceva(handle, told, has_headers ? ALL : WITHOUT_HEADERS);
        if (*error != NULL) {
            if (has_headers) { /* librdkafka keeps them only with the message */
                rdkafka.headers_destroy(told[THE_HEADERS].u.headers);
            }
            break;
        }
    }
    return row - first;
}
