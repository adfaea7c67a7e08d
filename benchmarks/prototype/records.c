/* Record batches of Kafka (magic 2) into the buffers of Arrow columns, without an object a record.
 *
 * The caller decompresses. `scan_batches` finds and checks the batches of an answer, `measure_records` tells how large
 * the buffers must be, `fill_records` fills them; all three walk bytes that may be broken and never read beyond `end`.
 * Each gives a negative number for what it refuses.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CUT_SHORT = -1, OTHER_MAGIC = -2, WRONG_CRC = -3, NOT_A_RECORD = -4, TOO_LARGE = -5, NOT_LZ4 = -6 };
enum { HEADER_BYTES = 61, BEFORE_LENGTH_COUNTS = 12, CRC_STARTS_AT = 21 };
enum { LOG_APPEND_TIME = 1 << 3 };

/* ---- batches ---- */

typedef struct {
    int64_t base_offset, first_timestamp, max_timestamp, producer_id;
    int64_t start, length; /* of the records, compressed as they are, in what was scanned */
    int32_t leader_epoch, last_offset_delta, records, attributes;
} batch;

static uint64_t big_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

static uint32_t crc_table[256];

static uint32_t crc_by_table(const uint8_t *at, const uint8_t *end) {
    uint32_t crc = 0xffffffff;
    if (!crc_table[1]) {
        for (uint32_t byte = 256; byte--;) { /* entry 1 is written behind all others but 0, which stays 0 */
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78 : 0);
            crc_table[byte] = value;
        }
    }
    while (at < end) crc = crc >> 8 ^ crc_table[(crc ^ *at++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(const uint8_t *at, const uint8_t *end) {
    uint64_t crc = 0xffffffff, word;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    while (at < end) crc = _mm_crc32_u8((uint32_t)crc, *at++);
    return ~(uint32_t)crc;
}
#endif

uint32_t crc32c(const uint8_t *at, const uint8_t *end) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc_by_instruction(at, end);
#endif
    return crc_by_table(at, end);
}

/* The whole batches in data, at most `most` of them; the answer of a broker may end inside one. */
int64_t scan_batches(const uint8_t *data, int64_t size, batch *found, int64_t most) {
    int64_t count = 0, at = 0;
    while (count < most && size - at >= HEADER_BYTES) {
        const uint8_t *here = data + at;
        int64_t length = BEFORE_LENGTH_COUNTS + (int32_t)big_endian(here + 8, 4);
        if (here[16] != 2) return OTHER_MAGIC;
        if (length < HEADER_BYTES) return NOT_A_RECORD;
        if (length > size - at) break;
        if (crc32c(here + CRC_STARTS_AT, here + length) != (uint32_t)big_endian(here + 17, 4)) return WRONG_CRC;
        found[count++] = (batch){
            .base_offset = (int64_t)big_endian(here, 8),
            .leader_epoch = (int32_t)big_endian(here + 12, 4),
            .attributes = (int16_t)big_endian(here + 21, 2),
            .last_offset_delta = (int32_t)big_endian(here + 23, 4),
            .first_timestamp = (int64_t)big_endian(here + 27, 8),
            .max_timestamp = (int64_t)big_endian(here + 35, 8),
            .producer_id = (int64_t)big_endian(here + 43, 8),
            .records = (int32_t)big_endian(here + 57, 4),
            .start = at + HEADER_BYTES,
            .length = length - HEADER_BYTES,
        };
        at += length;
    }
    return count;
}

/* No fewer bytes than the lz4 frame inflates to: what it says, or its blocks as large as they may be. */
int64_t lz4_bound(const uint8_t *data, int64_t size) {
    if (size < 7 || memcmp(data, "\x04\x22\x4d\x18", 4)) return NOT_LZ4;
    int flags = data[4];
    int64_t largest = (int64_t)1 << (8 + 2 * (data[5] >> 4 & 7)), bound = 0;
    int64_t at = 7 + (flags & 1 ? 4 : 0);
    if (flags & 8) { /* the content's size, which is little-endian */
        if (size < 15) return NOT_LZ4;
        for (int byte = 8; byte--;) bound = bound << 8 | data[6 + byte];
        return bound < 0 || bound > INT32_MAX ? TOO_LARGE : bound;
    }
    while (size - at >= 4) {
        uint32_t block = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | (uint32_t)data[at + 3] << 24;
        if (!block) return bound;
        at += 4 + (int64_t)(block & 0x7fffffff) + (flags & 16 ? 4 : 0);
        bound += largest;
        if (bound > INT32_MAX) return TOO_LARGE;
    }
    return NOT_LZ4;
}

/* ---- records ---- */

typedef struct {
    const uint8_t *at, *end;
    int bad;
} cursor;

typedef struct {
    const uint8_t *start;
    int64_t size; /* -1 for null */
} field;

typedef struct {
    int64_t timestamp_delta, offset_delta, headers;
    field key, value;
    const uint8_t *end;
} record;

static inline int64_t varint(cursor *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    }
    in->bad = 1;
    return 0;
}

static inline field next_field(cursor *in) {
    field found;
    found.size = varint(in);
    found.start = in->at;
    if (found.size < -1 || found.size > in->end - in->at) {
        in->bad = 1;
        found.size = 0;
    }
    if (found.size > 0) in->at += found.size;
    return found;
}

/* Everything of a record but its headers, at which the cursor stands afterwards. */
static inline record next_record(cursor *in) {
    record found = {0};
    int64_t length = varint(in);
    if (in->bad || length < 1 || length > in->end - in->at) {
        in->bad = 1;
        return found;
    }
    found.end = in->at + length;
    in->at++; /* attributes, of which there are none */
    found.timestamp_delta = varint(in);
    found.offset_delta = varint(in);
    found.key = next_field(in);
    found.value = next_field(in);
    found.headers = varint(in);
    if (found.headers < 0 || found.headers > found.end - in->at) in->bad = 1;
    return found;
}

typedef struct {
    int64_t records, key_bytes, value_bytes, null_keys, null_values;
    int64_t headers, header_key_bytes, header_value_bytes, null_header_values;
} totals;

/* Adds what the records at or above `least` (an offset, less the batch's) need. */
int64_t measure_records(const uint8_t *data, int64_t size, int64_t records, int64_t least, totals *sum) {
    cursor in = {data, data + size, 0};
    while (records--) {
        record one = next_record(&in);
        if (in.bad) return NOT_A_RECORD;
        if (one.offset_delta < least) {
            in.at = one.end;
            continue;
        }
        for (int64_t left = one.headers; left--;) {
            field key = next_field(&in), value = next_field(&in);
            if (in.bad || key.size < 0) return NOT_A_RECORD;
            sum->header_key_bytes += key.size;
            sum->header_value_bytes += value.size > 0 ? value.size : 0;
            sum->null_header_values += value.size < 0;
        }
        if (in.at != one.end) return NOT_A_RECORD;
        sum->records++;
        sum->headers += one.headers;
        sum->key_bytes += one.key.size > 0 ? one.key.size : 0;
        sum->value_bytes += one.value.size > 0 ? one.value.size : 0;
        sum->null_keys += one.key.size < 0;
        sum->null_values += one.value.size < 0;
    }
    if (sum->value_bytes > INT32_MAX || sum->key_bytes > INT32_MAX) return TOO_LARGE;
    return sum->header_key_bytes > INT32_MAX || sum->header_value_bytes > INT32_MAX ? TOO_LARGE : 0;
}

/* A variable-length column: `ends` has one entry more than rows; `valid` is zeroed, or NULL where nothing is null. */
typedef struct {
    int32_t *ends;
    uint8_t *bytes, *valid;
    int64_t rows, filled;
} column;

typedef struct {
    int64_t *offsets, *timestamps;
    int8_t *timestamp_types;
    int32_t *header_ends;
    int64_t rows;
    column keys, values, header_keys, header_values;
} columns;

static inline void append(column *to, field from) {
    if (from.size > 0) {
        memcpy(to->bytes + to->filled, from.start, (size_t)from.size);
        to->filled += from.size;
    }
    if (to->valid && from.size >= 0) to->valid[to->rows >> 3] |= (uint8_t)(1 << (to->rows & 7));
    to->ends[++to->rows] = (int32_t)to->filled;
}

/* Appends what `measure_records` measured; to be called with the same records, in the same order. */
int64_t fill_records(const uint8_t *data, int64_t size, const batch *of, int64_t least, columns *to) {
    cursor in = {data, data + size, 0};
    int by_append = (of->attributes & LOG_APPEND_TIME) != 0;
    for (int64_t left = of->records; left--;) {
        record one = next_record(&in);
        if (in.bad) return NOT_A_RECORD;
        if (one.offset_delta < least) {
            in.at = one.end;
            continue;
        }
        to->offsets[to->rows] = of->base_offset + one.offset_delta;
        to->timestamps[to->rows] = by_append ? of->max_timestamp : of->first_timestamp + one.timestamp_delta;
        to->timestamp_types[to->rows] = (int8_t)by_append;
        append(&to->keys, one.key);
        append(&to->values, one.value);
        for (int64_t more = one.headers; more--;) {
            field key = next_field(&in), value = next_field(&in);
            append(&to->header_keys, key);
            append(&to->header_values, value);
        }
        to->header_ends[++to->rows] = (int32_t)to->header_keys.rows;
    }
    return 0;
}
