/* Lines of record format json as Arrow columns, where each line is such as json_encode.c writes it. Any other line,
   right or wrong, makes the whole block one for Python. Whatever the bytes are, nothing outside them is read. */
#include "functions.h"
#include "capsules.h"
#include "records.h"
#include "text.h"

#define SHORTEST_LINE 47 /* {"offset":0,"timestamp":0,"key":"","value":""} and the newline */
#define PADDING (4 * BLOCK)

enum outcome { DECODED, UNUSUAL, NO_MEMORY };

/* A binary column as it grows: room for as many bytes as all lines have, which no content exceeds. */
struct column {
    uint8_t *bytes;
    int32_t *ends;
    uint8_t *valid;
    int64_t used;
    int64_t count;
    int64_t nulls;
};

struct decoder {
    const uint8_t *at;
    const uint8_t *end;
    size_t size; /* bytes of all lines */
    int64_t rows;
    int64_t count;
    int8_t default_type;
    int64_t *offsets;
    int64_t *timestamps;
    int8_t *timestamp_types;
    struct column keys;
    struct column values;
    int32_t *header_ends;
    struct column header_keys;
    struct column header_values;
    int64_t header_room;
};

static uint8_t base64_values[256];
static uint8_t unescaped[256];

void
prepare_decoder(void)
{
    memset(base64_values, 0xff, sizeof base64_values);
    for (uint8_t i = 0; i < 64; i++) {
        base64_values[(uint8_t)BASE64_LETTERS[i]] = i;
    }
    static const char named[][2] = {
        {'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        unescaped[(uint8_t)named[i][0]] = (uint8_t)named[i][1];
    }
}

/* Where the text is at `at`, behind it; else NULL. */
static inline const uint8_t *
after(const uint8_t *at, const uint8_t *end, const char *text, size_t length)
{
    return (size_t)(end - at) >= length && memcmp(at, text, length) == 0 ? at + length : NULL;
}

#define AFTER(at, end, text) after(at, end, text, sizeof(text) - 1)

/* Moves on and is true where the text is next. */
static inline int
take(struct decoder *decoder, const char *text, size_t length)
{
    const uint8_t *next = after(decoder->at, decoder->end, text, length);
    decoder->at = next == NULL ? decoder->at : next;
    return next != NULL;
}

#define TAKE(decoder, text) take(decoder, text, sizeof(text) - 1)

static inline int
take_number(struct decoder *decoder, int64_t *number)
{
    const uint8_t *at = decoder->at, *end = decoder->end;
    int is_negative = at < end && *at == '-';
    at += is_negative;
    const uint8_t *first = at;
    uint64_t found = 0;
    while (at < end && (uint8_t)(*at - '0') < 10 && at - first < 19) {
        found = found * 10 + (uint8_t)(*at - '0');
        at++;
    }
    /* 19 digits fit into 64 bits without a sign. What follows is no digit: a comma is asked for. */
    if (at == first || (*first == '0' && (at - first > 1 || is_negative)) ||
        found > (uint64_t)INT64_MAX + (uint64_t)is_negative) {
        return 0;
    }
    *number = is_negative ? (int64_t)(0 - found) : (int64_t)found;
    decoder->at = at;
    return 1;
}

static inline int
hex_digits(const uint8_t *at, uint32_t *code)
{
    uint32_t found = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t digit = at[i], lower = digit | 0x20;
        if ((uint8_t)(digit - '0') < 10) {
            found = found << 4 | (uint32_t)(digit - '0');
        }
        else if ((uint8_t)(lower - 'a') < 6) {
            found = found << 4 | (uint32_t)(lower - 'a' + 10);
        }
        else {
            return 0;
        }
    }
    *code = found;
    return 1;
}

static uint8_t *
put_character(uint8_t *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (uint8_t)code;
        return to;
    }
    if (code < 0x800) {
        *to++ = (uint8_t)(0xc0 | code >> 6);
    }
    else {
        if (code < 0x10000) {
            *to++ = (uint8_t)(0xe0 | code >> 12);
        }
        else {
            *to++ = (uint8_t)(0xf0 | code >> 18);
            *to++ = (uint8_t)(0x80 | (code >> 12 & 63));
        }
        *to++ = (uint8_t)(0x80 | (code >> 6 & 63));
    }
    *to++ = (uint8_t)(0x80 | (code & 63));
    return to;
}

/* The bytes of the escape at a backslash, 0 where it is none; `to` moves behind the character. */
static inline size_t
take_escape(const uint8_t *at, const uint8_t *end, uint8_t **to)
{
    if (end - at < 2) {
        return 0;
    }
    if (at[1] != 'u') {
        *(*to)++ = unescaped[at[1]];
        return unescaped[at[1]] ? 2 : 0;
    }
    uint32_t code, low;
    if (end - at < 6 || !hex_digits(at + 2, &code)) {
        return 0;
    }
    if ((code & 0xf800) != 0xd800) {
        *to = put_character(*to, code);
        return 6;
    }
    if (code >= 0xdc00 || end - at < 12 || at[6] != '\\' || at[7] != 'u' || !hex_digits(at + 8, &low) ||
        (low & 0xfc00) != 0xdc00) {
        return 0;
    }
    *to = put_character(*to, 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff)));
    return 12;
}

/* The inside of a string, unescaped, up to its quote, behind which it gives the place; NULL where it is no text. */
static const uint8_t *
unescape(const uint8_t *at, const uint8_t *end, uint8_t **written)
{
    uint8_t *to = *written;
    /* A block, and from any place in it another one, lie in the lines. */
    while (end - at >= 2 * BLOCK) {
        unsigned special = special_bytes(at);
        size_t done = 0;
        while (special) {
            size_t next = (size_t)__builtin_ctz(special);
            memcpy(to, at + done, BLOCK);
            to += next - done;
            if (at[next] != '\\') {
                *written = to;
                return at[next] == '"' ? at + next + 1 : NULL;
            }
            size_t length = take_escape(at + next, end, &to);
            if (length == 0) {
                return NULL;
            }
            done = next + length;
            special = done < BLOCK ? special >> done << done : 0;
        }
        if (done < BLOCK) {
            memcpy(to, at + done, BLOCK);
            to += BLOCK - done;
            done = BLOCK;
        }
        at += done;
    }
    while (at < end) {
        if (*at == '"') {
            *written = to;
            return at + 1;
        }
        if (*at < 0x20) {
            return NULL;
        }
        if (*at == '\\') {
            size_t length = take_escape(at, end, &to);
            if (length == 0) {
                return NULL;
            }
            at += length;
        }
        else {
            *to++ = *at++;
        }
    }
    return NULL;
}

/* The same for base64 as it is written, with its padding and nothing in the bits left over. */
static const uint8_t *
decode_base64(const uint8_t *at, const uint8_t *end, uint8_t **written)
{
    uint8_t *to = *written;
    while (end - at >= 4 && *at != '"') {
        uint32_t a = base64_values[at[0]], b = base64_values[at[1]], c = base64_values[at[2]], d = base64_values[at[3]];
        int padding = at[3] != '=' ? 0 : at[2] != '=' ? 1 : 2;
        c = padding == 2 ? 0 : c;
        d = padding ? 0 : d;
        if ((a | b | c | d) > 63) {
            return NULL;
        }
        uint32_t three = a << 18 | b << 12 | c << 6 | d;
        if (three & ((1u << 8 * padding) - 1)) {
            return NULL;
        }
        to[0] = (uint8_t)(three >> 16);
        to[1] = (uint8_t)(three >> 8);
        to[2] = (uint8_t)three;
        to += 3 - padding;
        at += 4;
        if (padding) {
            break;
        }
    }
    *written = to;
    return AFTER(at, end, "\"");
}

static void
end_row(struct column *column, int is_valid)
{
    column->valid[column->count >> 3] |= (uint8_t)(is_valid << (column->count & 7));
    column->nulls += !is_valid;
    column->ends[++column->count] = (int32_t)column->used;
}

typedef const uint8_t *reading(const uint8_t *at, const uint8_t *end, uint8_t **written);

/* The rest of a string, read as text or as base64. */
static inline int
take_string(struct decoder *decoder, struct column *column, reading *read)
{
    uint8_t *start = column->bytes + column->used, *to = start;
    const uint8_t *next = read(decoder->at, decoder->end, &to);
    if (next == NULL || (read == unescape && !is_utf8(start, (size_t)(to - start)))) {
        return 0;
    }
    decoder->at = next;
    column->used = to - column->bytes;
    end_row(column, 1);
    return 1;
}

/* `name":null`, `name":"text"` or `name_base64":"..."`. */
static int
take_content(struct decoder *decoder, const char *name, size_t length, struct column *column)
{
    if (!take(decoder, name, length)) {
        return 0;
    }
    if (TAKE(decoder, "\":\"")) {
        return take_string(decoder, column, unescape);
    }
    if (TAKE(decoder, "_base64\":\"")) {
        return take_string(decoder, column, decode_base64);
    }
    if (!TAKE(decoder, "\":null")) {
        return 0;
    }
    end_row(column, 0);
    return 1;
}

static int
grow_rows(struct column *column, int64_t room)
{
    int32_t *ends = realloc(column->ends, sizeof(int32_t) * (size_t)(room + 1));
    if (ends == NULL) {
        return -1;
    }
    column->ends = ends;
    size_t before = (size_t)(column->count + 7) / 8, bytes = (size_t)(room + 7) / 8;
    uint8_t *valid = realloc(column->valid, bytes);
    if (valid == NULL) {
        return -1;
    }
    memset(valid + before, 0, bytes - before);
    column->valid = valid;
    return 0;
}

static int
make_room(struct column *column, size_t bytes, int64_t rows)
{
    column->bytes = malloc(bytes + PADDING);
    if (column->bytes == NULL || grow_rows(column, rows) < 0) {
        return -1;
    }
    column->ends[0] = 0;
    return 0;
}

static int
room_for_header(struct decoder *decoder)
{
    if (decoder->header_keys.count < decoder->header_room) {
        return 0;
    }
    struct column *keys = &decoder->header_keys, *values = &decoder->header_values;
    int64_t room = decoder->header_room ? 2 * decoder->header_room : 64;
    if (decoder->header_room == 0) {
        if (make_room(keys, decoder->size, room) < 0 || make_room(values, decoder->size, room) < 0) {
            return -1;
        }
    }
    else if (grow_rows(keys, room) < 0 || grow_rows(values, room) < 0) {
        return -1;
    }
    decoder->header_room = room;
    return 0;
}

static enum outcome
take_headers(struct decoder *decoder)
{
    do {
        if (room_for_header(decoder) < 0) {
            return NO_MEMORY;
        }
        if (!TAKE(decoder, "{\"key\":\"") || !take_string(decoder, &decoder->header_keys, unescape) ||
            !TAKE(decoder, ",\"") || !take_content(decoder, "value", 5, &decoder->header_values) ||
            !TAKE(decoder, "}")) {
            return UNUSUAL;
        }
    } while (TAKE(decoder, ","));
    return TAKE(decoder, "],\"") ? DECODED : UNUSUAL;
}

static int
take_timestamp_type(struct decoder *decoder, int8_t *timestamp_type)
{
    *timestamp_type = decoder->default_type;
    if (!TAKE(decoder, "timestamp_type\":\"")) {
        return 1;
    }
    *timestamp_type = TAKE(decoder, "CreateTime\",\"")        ? 0
                      : TAKE(decoder, "LogAppendTime\",\"")   ? 1
                      : TAKE(decoder, "NoTimestampType\",\"") ? -1
                                                            : 2;
    return *timestamp_type != 2;
}

static enum outcome
take_line(struct decoder *decoder, int64_t row)
{
    if (row == decoder->rows) { /* more lines than were counted: somebody changes the bytes */
        return UNUSUAL;
    }
    if (!TAKE(decoder, "{\"offset\":") || !take_number(decoder, &decoder->offsets[row]) ||
        !TAKE(decoder, ",\"timestamp\":") || !take_number(decoder, &decoder->timestamps[row]) ||
        !TAKE(decoder, ",\"") || !take_timestamp_type(decoder, &decoder->timestamp_types[row]) ||
        !take_content(decoder, "key", 3, &decoder->keys) || !TAKE(decoder, ",\"")) {
        return UNUSUAL;
    }
    if (TAKE(decoder, "headers\":[")) {
        enum outcome headers = take_headers(decoder);
        if (headers != DECODED) {
            return headers;
        }
    }
    decoder->header_ends[row + 1] = (int32_t)decoder->header_keys.count;
    if (!take_content(decoder, "value", 5, &decoder->values) || !TAKE(decoder, "}\n")) {
        return UNUSUAL;
    }
    decoder->count = row + 1;
    return DECODED;
}

static int64_t
newlines(const uint8_t *at, const uint8_t *end)
{
    int64_t count = 0;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        at++;
        count++;
    }
    return count;
}

static enum outcome
decode(struct decoder *decoder)
{
    decoder->rows = newlines(decoder->at, decoder->end);
    if (decoder->rows == 0 || decoder->rows > (int64_t)(decoder->size / SHORTEST_LINE)) {
        return UNUSUAL;
    }
    size_t rows = (size_t)decoder->rows;
    decoder->offsets = malloc(sizeof(int64_t) * rows);
    decoder->timestamps = malloc(sizeof(int64_t) * rows);
    decoder->timestamp_types = malloc(rows);
    decoder->header_ends = malloc(sizeof(int32_t) * (rows + 1));
    if (decoder->offsets == NULL || decoder->timestamps == NULL || decoder->timestamp_types == NULL ||
        decoder->header_ends == NULL || make_room(&decoder->keys, decoder->size, decoder->rows) < 0 ||
        make_room(&decoder->values, decoder->size, decoder->rows) < 0) {
        return NO_MEMORY;
    }
    decoder->header_ends[0] = 0;
    enum outcome outcome = DECODED;
    for (int64_t row = 0; decoder->at < decoder->end && outcome == DECODED; row++) {
        outcome = take_line(decoder, row);
    }
    return outcome;
}

static void
free_column(struct column *column)
{
    free(column->bytes);
    free(column->ends);
    free(column->valid);
}

static void
free_decoder(struct decoder *decoder)
{
    free(decoder->offsets);
    free(decoder->timestamps);
    free(decoder->timestamp_types);
    free(decoder->header_ends);
    free_column(&decoder->keys);
    free_column(&decoder->values);
    free_column(&decoder->header_keys);
    free_column(&decoder->header_values);
}

/* Hands a buffer over. */
static void *
given(void *place)
{
    void *buffer = *(void **)place;
    *(void **)place = NULL;
    return buffer;
}

static int
export_numbers(struct ArrowArray *array, void *numbers, int64_t count)
{
    if (arrow_make_array(array, count, 2, 0) < 0) {
        return -1;
    }
    array->buffers[1] = given(numbers);
    return 0;
}

static int
export_column(struct ArrowArray *array, struct column *column)
{
    if (column->ends == NULL && make_room(column, 0, 0) < 0) { /* no headers */
        return -1;
    }
    if (arrow_make_array(array, column->count, 3, 0) < 0) {
        return -1;
    }
    uint8_t *fitting = realloc(column->bytes, (size_t)column->used + 1);
    column->bytes = fitting == NULL ? column->bytes : fitting;
    array->null_count = column->nulls;
    if (column->nulls) {
        array->buffers[0] = given(&column->valid);
    }
    array->buffers[1] = given(&column->ends);
    array->buffers[2] = given(&column->bytes);
    return 0;
}

static int
export_headers(struct ArrowArray *array, struct decoder *decoder)
{
    if (arrow_make_array(array, decoder->count, 2, 1) < 0) {
        return -1;
    }
    array->buffers[1] = given(&decoder->header_ends);
    struct ArrowArray *items = array->children[0];
    if (arrow_make_array(items, decoder->header_keys.count, 1, 2) < 0) {
        return -1;
    }
    if (export_column(items->children[0], &decoder->header_keys) < 0) {
        return -1;
    }
    return export_column(items->children[1], &decoder->header_values);
}

/* -1 without memory; what of it was made is released with it. */
static int
export_records(struct ArrowArray *array, struct decoder *decoder)
{
    if (arrow_make_array(array, decoder->count, 1, 6) < 0) {
        return -1;
    }
    struct ArrowArray **columns = array->children;
    if (export_numbers(columns[0], &decoder->offsets, decoder->count) < 0 ||
        export_numbers(columns[1], &decoder->timestamps, decoder->count) < 0 ||
        export_numbers(columns[2], &decoder->timestamp_types, decoder->count) < 0 ||
        export_column(columns[3], &decoder->keys) < 0 || export_column(columns[4], &decoder->values) < 0 ||
        export_headers(columns[5], decoder) < 0) {
        array->release(array);
        return -1;
    }
    return 0;
}

PyObject *
decode_json_lines(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer raw;
    int timestamp_type;
    if (!PyArg_ParseTuple(arguments, "y*i:decode_json_lines", &raw, &timestamp_type)) {
        return NULL;
    }
    const uint8_t *bytes = raw.buf;
    struct decoder decoder = {
        .at = bytes,
        .end = bytes + raw.len,
        .size = (size_t)raw.len,
        .default_type = (int8_t)timestamp_type,
    };
    enum outcome outcome = UNUSUAL;
    if (raw.len <= INT32_MAX - PADDING) {
        Py_BEGIN_ALLOW_THREADS
        outcome = decode(&decoder);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&raw);
    PyObject *result = NULL;
    if (outcome == DECODED) {
        struct ArrowArray array;
        result = export_records(&array, &decoder) < 0 ? PyErr_NoMemory() : capsules_of_records(array);
    }
    else if (outcome == UNUSUAL) {
        result = Py_NewRef(Py_None);
    }
    else {
        PyErr_NoMemory();
    }
    free_decoder(&decoder);
    return result;
}

PyObject *
count_lines(PyObject *module, PyObject *raw)
{
    (void)module;
    Py_buffer bytes;
    if (PyObject_GetBuffer(raw, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int64_t count;
    Py_BEGIN_ALLOW_THREADS
    count = newlines(bytes.buf, (const uint8_t *)bytes.buf + bytes.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&bytes);
    return PyLong_FromLongLong(count);
}
