/* Messages into the columns of index_format.records.SCHEMA: measured, then copied once into one block of memory. */
#include "consumer.h"

#include "text.h"

enum { ALIGNMENT = 64, NO_TIMESTAMP = -1, NO_EPOCH = -1 };

enum { BATCH, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS, HEADER, HEADER_KEY, HEADER_VALUE, NODES };

struct columns {
    int references; /* arrays that were not released */
    struct ArrowArray arrays[NODES];
    struct ArrowArray *of_batch[HEADERS], *of_headers[1], *of_header[2];
    const void *buffers[NODES][3];
};

/* ---- Arrow ---- */

static void
release_array(struct ArrowArray *array)
{
    columns *block = array->private_data;
    for (int64_t number = 0; number < array->n_children; number++) {
        struct ArrowArray *child = array->children[number];
        if (child->release != NULL) { /* else it was moved, and is released by its owner */
            child->release(child);
        }
    }
    array->release = NULL;
    if (__atomic_sub_fetch(&block->references, 1, __ATOMIC_ACQ_REL) == 0) {
        free(block);
    }
}

void
free_columns(columns *block)
{
    if (block->arrays[BATCH].release != NULL) {
        release_array(&block->arrays[BATCH]);
    }
}

struct ArrowArray
take_array(columns *block)
{
    struct ArrowArray array = block->arrays[BATCH];
    block->arrays[BATCH].release = NULL;
    return array;
}

/* ---- measuring ---- */

typedef struct {
    int64_t rows, bytes, nulls;
} content;

typedef struct {
    content keys, values, header_keys, header_values;
} contents;

static inline void
count(content *of, const void *value, size_t size)
{
    of->rows++;
    of->bytes += value ? (int64_t)size : 0;
    of->nulls += value == NULL;
}

/* NULL where there are none; librdkafka keeps them with the message once they were asked for. */
static inline rd_kafka_headers_t *
headers_of(const rd_kafka_message_t *message)
{
    rd_kafka_headers_t *headers = NULL;
    return rdkafka.message_headers(message, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR ? headers : NULL;
}

typedef struct {
    const char *key;
    const void *value; /* NULL for none */
    size_t size;
} header;

static inline int
get_header(const rd_kafka_headers_t *headers, size_t number, header *found)
{
    return rdkafka.header_get_all(headers, number, &found->key, &found->value, &found->size)
           == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Add what a message needs; 0 where a header key is not UTF-8. */
static int
measure(const rd_kafka_message_t *message, contents *sum)
{
    count(&sum->keys, message->key, message->key_len);
    count(&sum->values, message->payload, message->len);
    rd_kafka_headers_t *headers = headers_of(message);
    header each;
    for (size_t number = 0; headers != NULL && get_header(headers, number, &each); number++) {
        size_t key_size = strlen(each.key);
        if (!is_utf8((const uint8_t *)each.key, key_size)) {
            return 0;
        }
        count(&sum->header_keys, each.key, key_size);
        count(&sum->header_values, each.value, each.size);
    }
    return 1;
}

int64_t
message_bytes(const rd_kafka_message_t *message)
{
    int64_t sum = (int64_t)(message->len + message->key_len);
    rd_kafka_headers_t *headers = headers_of(message);
    header each;
    for (size_t number = 0; headers != NULL && get_header(headers, number, &each); number++) {
        sum += (int64_t)(strlen(each.key) + (each.value ? each.size : 0));
    }
    return sum;
}

static int
exceeds(const contents *sum, int64_t most_bytes)
{
    return sum->keys.bytes > most_bytes || sum->values.bytes > most_bytes || sum->header_keys.bytes > most_bytes
           || sum->header_values.bytes > most_bytes || sum->header_keys.rows > most_bytes;
}

static int32_t
epoch_of(const rd_kafka_message_t *message)
{
    int32_t epoch = rdkafka.message_leader_epoch(message);
    return epoch < 0 ? NO_EPOCH : epoch;
}

/* How many of the messages are one piece, and what they need; 0 where the first one is unreadable. */
static size_t
measure_piece(rd_kafka_message_t *const *messages, size_t most, int64_t most_bytes, contents *sum)
{
    int32_t epoch = epoch_of(messages[0]);
    for (size_t number = 0; number < most; number++) {
        contents with = *sum;
        int rises = number == 0 || messages[number]->offset > messages[number - 1]->offset;
        if (!rises || epoch_of(messages[number]) != epoch || !measure(messages[number], &with)
            || (number > 0 && exceeds(&with, most_bytes))) {
            return number;
        }
        *sum = with;
    }
    return most;
}

/* ---- filling ---- */

typedef struct {
    uint8_t *valid; /* NULL where nothing is null */
    int32_t *ends;
    char *bytes;
    int64_t rows, filled;
} column;

static size_t
aligned(size_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The next `size` bytes of the block; only counted where there is none yet. */
static void *
placed(columns *block, size_t *at, size_t size)
{
    void *place = block ? (char *)block + *at : NULL;
    *at += aligned(size);
    return place;
}

typedef struct {
    int64_t *offsets, *timestamps;
    int8_t *timestamp_types;
    int32_t *header_ends;
    column keys, values, header_keys, header_values;
} places;

static column
place_column(columns *block, size_t *at, const content *of)
{
    column found = {0};
    size_t bitmap = (size_t)(of->rows + 7) / 8;
    if (of->nulls > 0) {
        found.valid = placed(block, at, bitmap);
        if (found.valid != NULL) {
            memset(found.valid, 0, bitmap);
        }
    }
    found.ends = placed(block, at, (size_t)(of->rows + 1) * sizeof *found.ends);
    if (found.ends != NULL) {
        found.ends[0] = 0;
    }
    found.bytes = placed(block, at, (size_t)of->bytes);
    return found;
}

/* Where everything is in the block. Returns the block's size. */
static size_t
place_all(columns *block, const contents *of, places *to)
{
    size_t at = aligned(sizeof *block), rows = (size_t)of->keys.rows;
    to->offsets = placed(block, &at, rows * sizeof *to->offsets);
    to->timestamps = placed(block, &at, rows * sizeof *to->timestamps);
    to->timestamp_types = placed(block, &at, rows * sizeof *to->timestamp_types);
    to->header_ends = placed(block, &at, (rows + 1) * sizeof *to->header_ends);
    to->keys = place_column(block, &at, &of->keys);
    to->values = place_column(block, &at, &of->values);
    to->header_keys = place_column(block, &at, &of->header_keys);
    to->header_values = place_column(block, &at, &of->header_values);
    return at;
}

static inline void
append(column *to, const void *value, size_t size)
{
    if (value != NULL) {
        memcpy(to->bytes + to->filled, value, size);
        to->filled += (int64_t)size;
        if (to->valid != NULL) {
            to->valid[to->rows >> 3] |= (uint8_t)(1 << (to->rows & 7));
        }
    }
    to->ends[++to->rows] = (int32_t)to->filled;
}

int64_t
timestamp_of(const rd_kafka_message_t *message, int8_t *timestamp_type)
{
    rd_kafka_timestamp_type_t type = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    int64_t timestamp = rdkafka.message_timestamp(message, &type);
    *timestamp_type = (int8_t)(type - 1);
    return type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? NO_TIMESTAMP : timestamp;
}

static void
fill(places *to, rd_kafka_message_t *const *messages, size_t rows, int have_headers)
{
    to->header_ends[0] = 0;
    for (size_t row = 0; row < rows; row++) {
        const rd_kafka_message_t *message = messages[row];
        to->offsets[row] = message->offset;
        to->timestamps[row] = timestamp_of(message, &to->timestamp_types[row]);
        append(&to->keys, message->key, message->key_len);
        append(&to->values, message->payload, message->len);
        rd_kafka_headers_t *headers = have_headers ? headers_of(message) : NULL;
        header each;
        for (size_t number = 0; headers != NULL && get_header(headers, number, &each); number++) {
            append(&to->header_keys, each.key, strlen(each.key));
            append(&to->header_values, each.value, each.size);
        }
        to->header_ends[row + 1] = (int32_t)to->header_keys.rows;
    }
}

static void
describe(columns *block, int node, int64_t length, int64_t nulls, const void *second, const void *third)
{
    struct ArrowArray *array = &block->arrays[node];
    array->length = length;
    array->null_count = nulls;
    array->buffers = block->buffers[node];
    array->buffers[1] = second;
    array->buffers[2] = third;
    array->n_buffers = third ? 3 : second ? 2 : 1;
    array->release = release_array;
    array->private_data = block;
    block->references++;
}

static void
describe_column(columns *block, int node, const column *of, const content *measured)
{
    describe(block, node, measured->rows, measured->nulls, of->ends, of->bytes);
    block->buffers[node][0] = of->valid;
}

static void
describe_all(columns *block, const places *to, const contents *of)
{
    int64_t rows = of->keys.rows;
    describe(block, BATCH, rows, 0, NULL, NULL);
    describe(block, OFFSET, rows, 0, to->offsets, NULL);
    describe(block, TIMESTAMP, rows, 0, to->timestamps, NULL);
    describe(block, TIMESTAMP_TYPE, rows, 0, to->timestamp_types, NULL);
    describe_column(block, KEY, &to->keys, &of->keys);
    describe_column(block, VALUE, &to->values, &of->values);
    describe(block, HEADERS, rows, 0, to->header_ends, NULL);
    describe(block, HEADER, of->header_keys.rows, 0, NULL, NULL);
    describe_column(block, HEADER_KEY, &to->header_keys, &of->header_keys);
    describe_column(block, HEADER_VALUE, &to->header_values, &of->header_values);
    for (int node = OFFSET; node <= HEADERS; node++) {
        block->of_batch[node - OFFSET] = &block->arrays[node];
    }
    block->of_headers[0] = &block->arrays[HEADER];
    block->of_header[0] = &block->arrays[HEADER_KEY];
    block->of_header[1] = &block->arrays[HEADER_VALUE];
    block->arrays[BATCH].children = block->of_batch;
    block->arrays[BATCH].n_children = HEADERS;
    block->arrays[HEADERS].children = block->of_headers;
    block->arrays[HEADERS].n_children = 1;
    block->arrays[HEADER].children = block->of_header;
    block->arrays[HEADER].n_children = 2;
}

piece
cut_piece(rd_kafka_message_t *const *messages, size_t most, int64_t most_bytes)
{
    contents measured = {0};
    piece found = {.leader_epoch = epoch_of(messages[0])};
    size_t rows = measure_piece(messages, most, most_bytes, &measured);
    if (rows == 0) {
        found.taken = 1;
        return found;
    }
    places to;
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, place_all(NULL, &measured, &to)) != 0) {
        return found;
    }
    columns *block = memory;
    memset(block, 0, sizeof *block);
    place_all(block, &measured, &to);
    fill(&to, messages, rows, measured.header_keys.rows > 0);
    describe_all(block, &to, &measured);
    found.columns = block;
    found.taken = rows;
    return found;
}
