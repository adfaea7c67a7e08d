/* Rows of a batch, read from its Arrow data where it lies, handed to librdkafka one by one. */
#include "batch_rows.h"

#include "arrow_c_data.h"

enum { OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS, COLUMNS };

static int
has_format(const struct ArrowSchema *schema, const char *format, int64_t children)
{
    return strcmp(schema->format, format) == 0 && schema->n_children == children;
}

static int
is_of_records(const struct ArrowSchema *schema)
{
    static const char *const formats[COLUMNS] = {"l", "l", "c", "z", "z", "+l"};
    if (!has_format(schema, "+s", COLUMNS)) {
        return 0;
    }
    for (int number = 0; number < COLUMNS; number++) {
        if (!has_format(schema->children[number], formats[number], number == HEADERS)) {
            return 0;
        }
    }
    const struct ArrowSchema *header = schema->children[HEADERS]->children[0];
    return has_format(header, "+s", 2) && has_format(header->children[0], "u", 0) &&
           has_format(header->children[1], "z", 0);
}

/* `first` is the row of the batch, or of what it lies in, among the array's own. */
static bytes_column
bytes_from(const struct ArrowArray *array, int64_t first)
{
    first += array->offset;
    const int32_t *ends = array->buffers[1];
    return (bytes_column){
        .valid = array->null_count == 0 ? NULL : array->buffers[0],
        .bit = first,
        .ends = ends ? ends + first : NULL,
        .content = array->buffers[2],
    };
}

int
batch_rows_open(batch_rows *rows, PyObject *schema_capsule, PyObject *array_capsule)
{
    const struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
    const struct ArrowArray *array = schema ? PyCapsule_GetPointer(array_capsule, "arrow_array") : NULL;
    if (array == NULL) {
        return -1;
    }
    if (!is_of_records(schema)) {
        PyErr_SetString(PyExc_TypeError, "a batch of another schema than records have");
        return -1;
    }
    struct ArrowArray **columns = array->children;
    const struct ArrowArray *headers = columns[HEADERS], *header = headers->children[0];
    const int64_t *timestamps = columns[TIMESTAMP]->buffers[1];
    const int32_t *header_ends = headers->buffers[1];
    *rows = (batch_rows){
        .count = array->length,
        .keys = bytes_from(columns[KEY], array->offset),
        .values = bytes_from(columns[VALUE], array->offset),
        .header_keys = bytes_from(header->children[0], header->offset),
        .header_values = bytes_from(header->children[1], header->offset),
    };
    if (rows->count > 0) {
        rows->timestamps = timestamps + columns[TIMESTAMP]->offset + array->offset;
        rows->header_ends = header_ends + headers->offset + array->offset;
    }
    return 0;
}

/* NULL for null, never for what is empty. */
static inline void *
bytes_at(const bytes_column *column, int64_t row, size_t *size)
{
    int64_t bit = column->bit + row;
    *size = 0;
    if (column->valid != NULL && !(column->valid[bit >> 3] >> (bit & 7) & 1)) {
        return NULL;
    }
    *size = (size_t)(column->ends[row + 1] - column->ends[row]);
    return *size ? (void *)(column->content + column->ends[row]) : (void *)"";
}

static rd_kafka_headers_t *
headers_at(const batch_rows *rows, int64_t row)
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
batch_rows_produce(const batch_rows *rows, rd_kafka_t *handle, rd_kafka_topic_t *topic, int32_t partition,
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
