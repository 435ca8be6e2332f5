-- Sums over the contexts in which the draft proposed: the parents of nodes, each counted once.
-- grain: one row per prompt of a run that drafted something
-- run_id, domain, prompt_id  keys
-- n_draft_entropy      contexts with at least one drafted child and a draft entropy (count)
-- sum_draft_entropy    sum of the draft's entropies, model distribution (nats)
-- n_target_entropy     contexts with at least one drafted child and a target entropy (count)
-- sum_target_entropy   sum of the target's entropies, model distribution (nats)
SELECT
    run_id,
    domain,
    prompt_id,
    count(draft_entropy) AS n_draft_entropy,
    coalesce(sum(draft_entropy::DOUBLE), 0) AS sum_draft_entropy,
    count(target_entropy) AS n_target_entropy,
    coalesce(sum(target_entropy::DOUBLE), 0) AS sum_target_entropy
FROM nodes
-- every node repeats its parent's measures, and every parent has exactly one first child
WHERE child_rank = 0
GROUP BY run_id, domain, prompt_id
ORDER BY run_id, domain, prompt_id
