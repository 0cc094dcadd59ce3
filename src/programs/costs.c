#include "programs/costs.h"

#include "programs/cards.h"
#include "programs/estimate.h"
#include "programs/kept.h"

static const KeptFile file = { "costs", "ratoon costs 1" };
_Static_assert((int) RT_COSTS <= (int) KEPT_TEXT, "costs");

/* Everything that times depend on and that a run can tell. */
static bool key_of(char out[KEPT_KEY], const Program *p)
{
    const Options *o = p->o;
    char identity[512], machine[160], all[1280], on[200] = "";
    rt_card card;
    int n = 0;
    if (!rt_property(p->engine, "identity", identity, sizeof identity)) return false;
    const int32_t threads = machine_name(machine, sizeof machine, o);
    if (p->place.gpu_layers > 0 && card_named(&card, program_backend(p)))
        n = snprintf(on, sizeof on, "%s %s, %d layers, %llu of experts", card.name, card.level, p->place.gpu_layers,
                     (unsigned long long) o->expert_vram.value);
    for (int32_t i = 0; n > 0 && p->place.cards > 1 && i < p->place.cards && n < (int) sizeof on; i++)
        n += snprintf(on + n, sizeof on - (size_t) n, "+%d", p->place.card_layers[i]);
    snprintf(all, sizeof all, "%s|%s|%d threads|%s|block %d|%s", identity, machine, threads, *on ? on : "cpu",
             o->draft_block, o->no_repack ? "in place" : "packed");
    kept_key(out, all);
    return true;
}

void costs_load(const Program *p, rt_step *step)
{
    char path[4096], key[KEPT_KEY], costs[KEPT_TEXT];
    if (!key_of(key, p) || !kept_get(costs, &file, key) || rt_step_costs_set(step, costs) == RT_OK) return;
    if (kept_path(path, sizeof path, &file))
        note(p->o, "%s: what it says of this model is left out: %s", path, rt_step_error(step));
}

void costs_save(const Program *p, const rt_step *step)
{
    char costs[KEPT_TEXT], key[KEPT_KEY];
    size_t n = step ? rt_step_costs(step, costs, sizeof costs) : 0;
    if (n > 0 && n < sizeof costs && key_of(key, p)) kept_put(&file, key, costs);
}
