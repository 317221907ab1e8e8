/* Rows on their way to ranks with experts: lists, packing, and answers that are added (bench.h). */
#include "tests/kernels/cuda/bench.h"

enum { ROWS = 75, K = 3, RANKS = 5, EXPERTS = 23, D = 72 };

static const uint32_t first[RANKS + 1] = {0, 4, 9, 9, 18, 23}; /* one rank has none */

static bool is_for(const uint32_t *ids, uint32_t row, uint32_t rank)
{
    for (uint32_t k = 0; k < K; k++)
        if (ids[row * K + k] >= first[rank] && ids[row * K + k] < first[rank + 1])
            return true;
    return false;
}

/* Items of every rank, one after another, in the order of rows; the number of all. */
static uint32_t check_lists(const struct ep_list_args *a)
{
    uint32_t item = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t rows = 0, slots = 0;
        for (uint32_t row = 0; row < ROWS; row++) {
            bool here = is_for(a->ids, row, r);
            assert_int_equal(a->place[row * RANKS + r], here ? item : UINT32_MAX);
            if (here)
                assert_int_equal(a->take[item++], row);
            rows += here;
        }
        for (uint32_t i = 0; i < ROWS * K; i++)
            slots += a->ids[i] >= first[r] && a->ids[i] < first[r + 1];
        assert_int_equal(a->counts[r], rows);
        assert_int_equal(a->counts[RANKS + r], slots);
    }
    return item;
}

static void check_join(const struct ep_list_args *list, uint32_t items)
{
    float *back = floats(items * D, 1), *y = floats(ROWS * D, 1), before[ROWS * D];
    struct ep_join_args a = {.back = back, .place = list->place, .y = y, .d = D, .ranks = RANKS};
    memcpy(before, y, sizeof before);
    OK(gpu_ep_join(gpu, &a, ROWS, &err));
    finish();
    for (uint32_t i = 0; i < ROWS * D; i++) {
        float sum = before[i];
        for (uint32_t r = 0; r < RANKS; r++)
            if (list->place[i / D * RANKS + r] != UINT32_MAX)
                sum += back[list->place[i / D * RANKS + r] * D + i % D];
        assert_true(y[i] == sum); /* in the order of ranks, to the bit */
    }
    give(back), give(y);
}

static void dispatch_once(void)
{
    uint16_t *x = halves(ROWS * D, 1, to_bf16), *to_x = room(ROWS * K * D * 2);
    uint32_t *ids = room(ROWS * K * 4), *bounds = room(sizeof first), *to_ids;
    float *weights = floats(ROWS * K, 1), *to_weights = room(ROWS * K * K * 4);
    struct ep_list_args list = {.ids = ids,
                                .bounds = bounds,
                                .counts = room(2 * RANKS * 4),
                                .take = room(ROWS * K * 4),
                                .place = room(ROWS * RANKS * 4),
                                .rows = ROWS,
                                .top_k = K,
                                .ranks = RANKS};
    to_ids = room(ROWS * K * K * 4);
    memcpy(bounds, first, sizeof first);
    for (uint32_t i = 0; i < ROWS * K; i++)
        ids[i] = (uint32_t)rng_below(&rng, EXPERTS);
    OK(gpu_ep_list(gpu, &list, &err));
    finish();
    uint32_t items = check_lists(&list);
    struct ep_pack_args pack = {.x = x,
                                .take = list.take,
                                .ids = ids,
                                .weights = weights,
                                .to_x = to_x,
                                .to_ids = to_ids,
                                .to_weights = to_weights,
                                .d = D,
                                .top_k = K};
    OK(gpu_ep_pack(gpu, &pack, items, &err));
    finish();
    for (uint32_t i = 0; i < items; i++) {
        uint32_t row = list.take[i];
        assert_memory_equal(to_x + i * D, x + row * D, D * 2);
        assert_memory_equal(to_ids + i * K, ids + row * K, K * 4);
        assert_memory_equal(to_weights + i * K, weights + row * K, K * 4);
    }
    check_join(&list, items);
    give(x), give(to_x), give(ids), give(bounds), give(to_ids), give(weights), give(to_weights);
    give(list.counts), give(list.take), give(list.place);
}

static void rows_reach_every_rank_that_has_one_of_their_experts(void **state)
{
    (void)state;
    each_order(dispatch_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_reach_every_rank_that_has_one_of_their_experts),
    };
    RUN(tests);
}
