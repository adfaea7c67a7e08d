/* A fuzzer that keeps what reaches new code: `fuzz CORPUS-FOLDER SECONDS SEED`. An input that crashes the decoder is left in
   CORPUS-FOLDER/crash, and the process ends as the sanitizer ends it. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PLACES 65536
#define LARGEST 512
#define MOST 65536

void prepare_target(void);
int run_target(const uint8_t *bytes, size_t size);
void __sanitizer_cov_trace_pc(void);
void __asan_set_death_callback(void (*callback)(void));

struct input {
    uint8_t *bytes;
    size_t size;
};

static uint8_t visits[PLACES];
static uint8_t known[PLACES];
static uintptr_t place_before;
static struct input corpus[MOST];
static size_t kept;
static struct input current;
static const char *folder;
static uint64_t chance_state;

void
__sanitizer_cov_trace_pc(void)
{
    uintptr_t place = (uintptr_t)__builtin_return_address(0);
    place = (place >> 2) * 0x9e3779b97f4a7c15u >> 48;
    visits[(place ^ place_before) % PLACES]++;
    place_before = place >> 1;
}

static uint64_t
chance(uint64_t below)
{
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return chance_state % below;
}

static void
write_input(const struct input *input, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file != NULL) {
        fwrite(input->bytes, 1, input->size, file);
        fclose(file);
    }
}

static void
on_death(void)
{
    write_input(&current, "crash");
}

/* How often a place was visited, roughly. */
static uint8_t
bucket(uint8_t count)
{
    return count < 4 ? (uint8_t)(1 << count >> 1) : count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

/* Whether an input reached what none before it did. */
static int
is_new(const struct input *input)
{
    /* A copy of its exact size: the sanitizer sees what is read behind it. */
    uint8_t *copy = malloc(input->size ? input->size : 1);
    memcpy(copy, input->bytes, input->size);
    memset(visits, 0, sizeof visits);
    place_before = 0;
    current = *input;
    run_target(copy, input->size);
    free(copy);
    int found = 0;
    const uint64_t *words = (const uint64_t *)visits;
    for (size_t word = 0; word < PLACES / 8; word++) {
        for (size_t i = word * 8; words[word] && i < word * 8 + 8; i++) {
            uint8_t seen = bucket(visits[i]);
            found |= seen & ~known[i];
            known[i] |= seen;
        }
    }
    return found != 0;
}

static void
keep(const struct input *input)
{
    if (kept < MOST) {
        uint8_t *bytes = malloc(input->size ? input->size : 1);
        memcpy(bytes, input->bytes, input->size);
        corpus[kept++] = (struct input){bytes, input->size};
    }
}

static void
replace(struct input *input, size_t at, size_t taken, const uint8_t *with, size_t size)
{
    uint8_t moved[LARGEST];
    size_t rest = input->size - at - taken;
    if (at + size + rest > LARGEST) {
        return;
    }
    memcpy(moved, input->bytes + at + taken, rest);
    memmove(input->bytes + at, with, size);
    memcpy(input->bytes + at + size, moved, rest);
    input->size = at + size + rest;
}

static void
change(struct input *input)
{
    static const char *const pieces[] = {
        "{\"offset\":", ",\"timestamp\":", ",\"timestamp_type\":\"", "CreateTime\"", "LogAppendTime\"", "NoTimestampType\"",
        ",\"key\":", ",\"key_base64\":\"", ",\"headers\":[", "{\"key\":\"", "\",\"value\":null},", "]", "\"value\":", "}\n",
        ",\"value_base64\":\"", "null", "\"\"", "\\\"", "\\\\", "\\n", "\\u0000", "\\u00e9", "\\u20AC", "\\ud83d\\ude00", "\\ud800",
        "\\udc00", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "YQ==", "YWI=",
        "YWJj", "=", "-", "0", "9223372036854775807", "9223372036854775808", "aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    const char *piece = pieces[chance(sizeof pieces / sizeof *pieces)];
    const struct input *other = &corpus[chance(kept)];
    size_t at = chance(input->size + 1), left = input->size - at;
    uint8_t byte = (uint8_t)chance(256);
    switch (chance(7)) {
    case 0:
        replace(input, at, left ? 1 : 0, &byte, 1);
        return;
    case 1:
        replace(input, at, 0, (const uint8_t *)piece, strlen(piece));
        return;
    case 2:
        replace(input, at, chance((left < 16 ? left : 16) + 1), &byte, 0);
        return;
    case 3:
        replace(input, at, left < strlen(piece) ? left : strlen(piece), (const uint8_t *)piece, strlen(piece));
        return;
    case 4: /* another one's end */
        if (other->size) {
            size_t from = chance(other->size);
            replace(input, at, left, other->bytes + from, other->size - from);
        }
        return;
    case 5: /* a part of it once more */
        if (left) {
            uint8_t part[LARGEST];
            size_t size = 1 + chance(left);
            memcpy(part, input->bytes + at, size);
            replace(input, chance(input->size + 1), 0, part, size);
        }
        return;
    default:
        if (left) {
            input->bytes[at] ^= (uint8_t)(1 << chance(8));
        }
    }
}

static void
read_corpus(void)
{
    static uint8_t bytes[LARGEST];
    DIR *entries = opendir(folder);
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (file == NULL) {
            continue;
        }
        struct input input = {bytes, fread(bytes, 1, sizeof bytes, file)};
        fclose(file);
        if (is_new(&input)) {
            keep(&input);
        }
        else {
            remove(path);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
}

int
main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: fuzz CORPUS-FOLDER SECONDS SEED\n");
        return 2;
    }
    folder = arguments[1];
    time_t end = time(NULL) + atol(arguments[2]);
    chance_state = strtoull(arguments[3], NULL, 10) * 2 + 1;
    prepare_target();
    __asan_set_death_callback(on_death);
    read_corpus();
    if (kept == 0) {
        fprintf(stderr, "no corpus to begin with\n");
        return 2;
    }
    size_t begun = kept;
    uint64_t runs = 0;
    static uint8_t bytes[LARGEST];
    for (; runs % 1024 || time(NULL) < end; runs++) {
        const struct input *from = &corpus[chance(4) ? chance(kept) : kept - 1 - chance(kept < 16 ? kept : 16)];
        struct input input = {bytes, from->size};
        memcpy(bytes, from->bytes, from->size);
        for (uint64_t changes = 1 + chance(4); changes; changes--) {
            change(&input);
        }
        if (is_new(&input)) {
            char name[64];
            keep(&input);
            snprintf(name, sizeof name, "%s-%llu", arguments[3], (unsigned long long)runs);
            write_input(&input, name);
        }
    }
    printf("%llu runs, %zu inputs kept, %zu of them new\n", (unsigned long long)runs, kept, kept - begun);
    return 0;
}
