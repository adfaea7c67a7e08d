/* Text sixteen bytes at a time: what both directions of record format json share, and strict UTF-8. */
#ifndef BLOCKGZ_TEXT_H
#define BLOCKGZ_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 16

static const char BASE64_LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* A bit for each of 16 bytes that ends a run of JSON text: a control character, a quote or a backslash. */
static inline unsigned
special_bytes(const uint8_t *from)
{
#ifdef __SSE2__
    __m128i bytes = _mm_loadu_si128((const __m128i *)from);
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
    __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
    __m128i backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, backslash)));
#else
    unsigned mask = 0;
    for (int i = 0; i < BLOCK; i++) {
        mask |= (unsigned)(from[i] < 0x20 || from[i] == '"' || from[i] == '\\') << i;
    }
    return mask;
#endif
}

/* Not 0 where one of 16 bytes is not ASCII. */
static inline unsigned
beyond_ascii(const uint8_t *from)
{
#ifdef __SSE2__
    return (unsigned)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)from));
#else
    uint64_t halves[2];
    memcpy(halves, from, sizeof halves);
    return ((halves[0] | halves[1]) & 0x8080808080808080u) != 0;
#endif
}

/* The bytes of the character at `at`, 0 where it is no strict UTF-8. */
static inline size_t
utf8_length(const uint8_t *at, size_t left)
{
    uint8_t lead = at[0];
    if (lead < 0x80) {
        return 1;
    }
    size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || left < length || (at[1] & 0xc0) != 0x80) {
        return 0;
    }
    if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f) || (lead == 0xf0 && at[1] < 0x90) ||
        (lead == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    if ((length > 2 && (at[2] & 0xc0) != 0x80) || (length > 3 && (at[3] & 0xc0) != 0x80)) {
        return 0;
    }
    return length;
}

/* As Python decodes it: nothing longer than it has to be, no surrogates, nothing above U+10FFFF. */
static inline int
is_utf8(const uint8_t *at, size_t left)
{
    while (left) {
        size_t length = left >= BLOCK && !beyond_ascii(at) ? BLOCK : utf8_length(at, left);
        if (length == 0) {
            return 0;
        }
        at += length;
        left -= length;
    }
    return 1;
}

#endif
