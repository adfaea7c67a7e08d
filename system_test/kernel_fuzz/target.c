/* Decoding of lines as a function of bytes, compiled with what tells the fuzzer where it went. What is of Python
   is called by nothing here, and left out. */
#include "json_decode.c"

void
prepare_target(void)
{
    prepare_decoder();
}

/* 1 where the lines were decoded. All that was made is looked at, and freed. */
int
run_target(const uint8_t *bytes, size_t size)
{
    struct decoder decoder = {.at = bytes, .end = bytes + size, .size = size};
    enum outcome outcome = decode(&decoder);
    if (outcome == DECODED) {
        struct ArrowArray array = {0};
        struct ArrowSchema schema = {0};
        if (arrow_make_records_schema(&schema) == 0) {
            schema.release(&schema);
        }
        if (export_records(&array, &decoder) == 0) {
            volatile uint64_t sum = 0;
            if (!has_unfit_nulls(&array)) {
                struct records records = columns_of(&array);
                const struct contents *values = &records.values;
                for (int64_t row = 0; row < records.count; row++) {
                    for (int64_t i = values->ends[row]; i < values->ends[row + 1]; i++) {
                        sum += values->bytes[i];
                    }
                    sum += (uint64_t)is_null(&records.keys, row) + (uint64_t)records.header_ends[row + 1];
                }
            }
            array.release(&array);
        }
    }
    free_decoder(&decoder);
    return outcome == DECODED;
}
