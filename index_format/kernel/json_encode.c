/* Records as lines of record format json: FORMAT.md, "Record format json". What the lines take is measured first, so
   that they are written where they stay. */
#include "functions.h"
#include "records.h"
#include "text.h"

#define OVERSHOT (3 * BLOCK) /* bytes behind what is written that escaping a block may overwrite, at most */

struct lines {
    uint8_t *at;
    uint8_t *end;
    uint8_t *is_text; /* for each key, value and header's value whether it is UTF-8, in the order of the lines */
    long timestamp_type;
};

static uint8_t escapes[256][8];
static uint8_t escape_lengths[256];

void
prepare_encoder(void)
{
    static const char letters[] = "0123456789abcdef";
    static const char named[][2] = {
        {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
    for (int byte = 0; byte < 256; byte++) {
        uint8_t plain[8] = {(uint8_t)byte};
        uint8_t escape[8] = {'\\', 'u', '0', '0', letters[byte >> 4], letters[byte & 15]};
        memcpy(escapes[byte], byte < 0x20 ? escape : plain, 8);
        escape_lengths[byte] = byte < 0x20 ? 6 : 1;
    }
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        uint8_t escape[8] = {'\\', (uint8_t)named[i][1]};
        memcpy(escapes[(uint8_t)named[i][0]], escape, 8);
        escape_lengths[(uint8_t)named[i][0]] = 2;
    }
}

static inline size_t
digits_of(uint64_t number)
{
    size_t digits = 1;
    for (; number >= 10000; number /= 10000) {
        digits += 4;
    }
    return digits + (number >= 10) + (number >= 100) + (number >= 1000);
}

static inline uint64_t
magnitude(int64_t number)
{
    return number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
}

static inline size_t
number_size(int64_t number)
{
    return (size_t)(number < 0) + digits_of(magnitude(number));
}

/* What it is as the inside of a string; sets whether a byte is beyond ASCII. */
static size_t
text_size(const uint8_t *from, size_t left, int *is_beyond_ascii)
{
    size_t size = 0;
    uint8_t beyond = 0;
#ifdef __SSE2__
    __m128i all = _mm_setzero_si128();
    while (left >= BLOCK) {
        size_t blocks = left / BLOCK < 255 ? left / BLOCK : 255;
        __m128i escaped = _mm_setzero_si128();
        for (size_t i = 0; i < blocks; i++, from += BLOCK) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)from);
            __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
            __m128i backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
            escaped = _mm_sub_epi8(escaped, _mm_or_si128(quote, backslash));
            all = _mm_or_si128(all, bytes);
            if (_mm_movemask_epi8(control)) {
                for (int k = 0; k < BLOCK; k++) {
                    size += from[k] < 0x20 ? escape_lengths[from[k]] - 1u : 0;
                }
            }
        }
        uint64_t sums[2];
        _mm_storeu_si128((__m128i *)sums, _mm_sad_epu8(escaped, _mm_setzero_si128()));
        size += sums[0] + sums[1] + blocks * BLOCK;
        left -= blocks * BLOCK;
    }
    beyond = _mm_movemask_epi8(all) ? 0x80 : 0;
#endif
    for (; left; left--, from++) {
        size += escape_lengths[*from];
        beyond |= *from;
    }
    *is_beyond_ascii = beyond >> 7;
    return size;
}

/* What `"name":"text"`, `"name_base64":"..."` or `"name":null` takes; notes whether it is text. */
static inline size_t
content_size(size_t name_length, const struct contents *contents, int64_t row, uint8_t *is_text)
{
    if (is_null(contents, row)) {
        return name_length + 7;
    }
    const uint8_t *from = contents->bytes + contents->ends[row];
    size_t length = (size_t)length_of(contents, row);
    int is_beyond_ascii;
    size_t size = text_size(from, length, &is_beyond_ascii);
    *is_text = !is_beyond_ascii || is_utf8(from, length);
    return name_length + 5 + (*is_text ? size : 7 + (length + 2) / 3 * 4);
}

static inline const char *
type_name(int8_t timestamp_type)
{
    return timestamp_type == 0    ? ",\"timestamp_type\":\"CreateTime\""
           : timestamp_type == 1  ? ",\"timestamp_type\":\"LogAppendTime\""
           : timestamp_type == -1 ? ",\"timestamp_type\":\"NoTimestampType\""
                                  : NULL;
}

/* What the lines take, 0 where a record cannot be written. */
static size_t
measure(const struct records *records, const struct lines *lines)
{
    size_t size = 0;
    uint8_t *is_text = lines->is_text, is_key_text = 1;
    for (int64_t row = 0; row < records->count; row++) {
        int8_t timestamp_type = records->timestamp_types[row];
        if (timestamp_type != lines->timestamp_type) {
            const char *name = type_name(timestamp_type);
            if (name == NULL) {
                return 0;
            }
            size += strlen(name);
        }
        size += sizeof "{\"offset\":,\"timestamp\":,,}\n" - 1;
        size += number_size(records->offsets[row]) + number_size(records->timestamps[row]);
        size += content_size(3, &records->keys, row, is_text++);
        int32_t first = records->header_ends[row], end = records->header_ends[row + 1];
        size += first == end ? 0 : sizeof "\"headers\":[]" - 1 + (sizeof "{,}," - 1) * (size_t)(end - first);
        for (int32_t header = first; header < end; header++) {
            size += content_size(3, &records->header_keys, header, &is_key_text);
            size += content_size(5, &records->header_values, header, is_text++);
            if (!is_key_text) {
                return 0;
            }
        }
        size += content_size(5, &records->values, row, is_text++);
    }
    return size;
}

static inline void
put(struct lines *lines, const char *text, size_t length)
{
    memcpy(lines->at, text, length);
    lines->at += length;
}

#define PUT(lines, text) put(lines, text, sizeof(text) - 1)

static inline void
put_number(struct lines *lines, int64_t number)
{
    uint8_t digits[20];
    int first = sizeof digits;
    uint64_t left = magnitude(number);
    for (; left >= 100; left /= 100) {
        unsigned pair = (unsigned)(left % 100);
        digits[--first] = (uint8_t)('0' + pair % 10);
        digits[--first] = (uint8_t)('0' + pair / 10);
    }
    digits[--first] = (uint8_t)('0' + left % 10);
    if (left >= 10) {
        digits[--first] = (uint8_t)('0' + left / 10);
    }
    if (number < 0) {
        PUT(lines, "-");
    }
    put(lines, (const char *)digits + first, sizeof digits - (size_t)first);
}

/* Up to 16 bytes, escaped; 32 can be read. What follows what it writes is overwritten. */
static inline uint8_t *
escape_block(uint8_t *to, const uint8_t *from, unsigned count)
{
    unsigned special = special_bytes(from) & ((1u << count) - 1);
    unsigned done = 0;
    while (special) {
        unsigned next = (unsigned)__builtin_ctz(special);
        special &= special - 1;
        memcpy(to, from + done, BLOCK);
        to += next - done;
        memcpy(to, escapes[from[next]], 8);
        to += escape_lengths[from[next]];
        done = next + 1;
    }
    memcpy(to, from + done, BLOCK);
    return to + (count - done);
}

static inline uint8_t *
escape_byte(uint8_t *to, uint8_t byte)
{
    memcpy(to, escapes[byte], escape_lengths[byte]);
    return to + escape_lengths[byte];
}

static void
put_text(struct lines *lines, const uint8_t *from, size_t left, const uint8_t *readable)
{
    uint8_t *to = lines->at;
    /* The ends of what is read and of all lines are not passed: a block takes 96 bytes at most, and the last bytes are
       written singly. */
    while (left && readable - from >= 2 * BLOCK && lines->end - to >= 6 * BLOCK + OVERSHOT) {
        unsigned count = left < BLOCK ? (unsigned)left : BLOCK;
        to = escape_block(to, from, count);
        from += count;
        left -= count;
    }
    for (; left; left--, from++) {
        to = escape_byte(to, *from);
    }
    lines->at = to;
}

static void
put_base64(struct lines *lines, const uint8_t *from, size_t left)
{
    uint8_t *to = lines->at;
    for (; left >= 3; left -= 3, from += 3, to += 4) {
        uint32_t three = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
        to[0] = (uint8_t)BASE64_LETTERS[three >> 18];
        to[1] = (uint8_t)BASE64_LETTERS[three >> 12 & 63];
        to[2] = (uint8_t)BASE64_LETTERS[three >> 6 & 63];
        to[3] = (uint8_t)BASE64_LETTERS[three & 63];
    }
    if (left) {
        uint32_t rest = (uint32_t)from[0] << 16 | (left == 2 ? (uint32_t)from[1] << 8 : 0);
        to[0] = (uint8_t)BASE64_LETTERS[rest >> 18];
        to[1] = (uint8_t)BASE64_LETTERS[rest >> 12 & 63];
        to[2] = left == 2 ? (uint8_t)BASE64_LETTERS[rest >> 6 & 63] : '=';
        to[3] = '=';
        to += 4;
    }
    lines->at = to;
}

static inline void
put_content(
    struct lines *lines, const char *name, size_t name_length, const struct contents *contents, int64_t row, int is_text)
{
    PUT(lines, "\"");
    put(lines, name, name_length);
    if (is_null(contents, row)) {
        PUT(lines, "\":null");
        return;
    }
    const uint8_t *from = contents->bytes + contents->ends[row];
    size_t length = (size_t)length_of(contents, row);
    if (is_text) {
        PUT(lines, "\":\"");
        put_text(lines, from, length, contents->readable);
    }
    else {
        PUT(lines, "_base64\":\"");
        put_base64(lines, from, length);
    }
    PUT(lines, "\"");
}

static void
put_headers(struct lines *lines, const struct records *records, int64_t row)
{
    int32_t first = records->header_ends[row], end = records->header_ends[row + 1];
    if (first == end) {
        return;
    }
    PUT(lines, "\"headers\":[");
    for (int32_t header = first; header < end; header++) {
        PUT(lines, "{");
        put_content(lines, "key", 3, &records->header_keys, header, 1);
        PUT(lines, ",");
        put_content(lines, "value", 5, &records->header_values, header, *lines->is_text++);
        PUT(lines, "},");
    }
    lines->at[-1] = ']';
    PUT(lines, ",");
}

static void
put_record(struct lines *lines, const struct records *records, int64_t row)
{
    PUT(lines, "{\"offset\":");
    put_number(lines, records->offsets[row]);
    PUT(lines, ",\"timestamp\":");
    put_number(lines, records->timestamps[row]);
    if (records->timestamp_types[row] != lines->timestamp_type) {
        const char *name = type_name(records->timestamp_types[row]);
        put(lines, name, strlen(name));
    }
    PUT(lines, ",");
    put_content(lines, "key", 3, &records->keys, row, *lines->is_text++);
    PUT(lines, ",");
    put_headers(lines, records, row);
    put_content(lines, "value", 5, &records->values, row, *lines->is_text++);
    PUT(lines, "}\n");
}

static PyObject *
encoded(struct lines lines, const struct records *records)
{
    size_t size;
    Py_BEGIN_ALLOW_THREADS
    size = measure(records, &lines);
    Py_END_ALLOW_THREADS
    if (size == 0) {
        return Py_NewRef(Py_None);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof(int64_t) * (size_t)records->count));
    PyObject *both = NULL;
    if (bytes != NULL && ends != NULL) {
        uint8_t *start = lines.at = (uint8_t *)PyBytes_AsString(bytes);
        uint8_t *end = (uint8_t *)PyBytes_AsString(ends);
        lines.end = start + size;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t row = 0; row < records->count; row++, end += sizeof(int64_t)) {
            put_record(&lines, records, row);
            int64_t found = lines.at - start;
            memcpy(end, &found, sizeof found);
        }
        Py_END_ALLOW_THREADS
        if (lines.at == lines.end) {
            both = PyTuple_Pack(2, bytes, ends);
        }
        else {
            PyErr_SetString(PyExc_SystemError, "lines are not of the size that was measured");
        }
    }
    Py_XDECREF(bytes);
    Py_XDECREF(ends);
    return both;
}

PyObject *
encode_json_lines(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *batch;
    long timestamp_type;
    struct records records;
    if (!PyArg_ParseTuple(arguments, "Ol:encode_json_lines", &batch, &timestamp_type)) {
        return NULL;
    }
    int opened = open_records(batch, &records);
    if (opened <= 0) {
        return opened < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *result;
    if (records.count == 0) {
        result = Py_NewRef(Py_None);
    }
    else {
        size_t headers = (size_t)(records.header_ends[records.count] - records.header_ends[0]);
        uint8_t *is_text = calloc(2 * (size_t)records.count + headers, 1);
        struct lines lines = {.is_text = is_text, .timestamp_type = timestamp_type};
        result = is_text == NULL ? PyErr_NoMemory() : encoded(lines, &records);
        free(is_text);
    }
    Py_DECREF(records.capsules);
    return result;
}
