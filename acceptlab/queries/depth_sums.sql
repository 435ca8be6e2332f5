-- Counts and ratio sums of the nodes by depth.
-- grain: one row per prompt of a run and depth
-- run_id, domain, prompt_id  keys
-- depth        distance from the root, from 1
-- n_nodes      drafted nodes (count)
-- n_tested     accepted or rejected nodes; untested ones are no part of a rate's denominator (count)
-- n_accepted   accepted nodes (count)
-- n_ratio      nodes with a defined accept_ratio, tested or not (count)
-- sum_ratio    sum of accept_ratio = min(1, target_prob/draft_prob) over those nodes
SELECT
    run_id,
    domain,
    prompt_id,
    depth,
    count(*) AS n_nodes,
    count(*) FILTER (outcome <> 'untested') AS n_tested,
    count(*) FILTER (outcome = 'accepted') AS n_accepted,
    count(accept_ratio) AS n_ratio,
    coalesce(sum(accept_ratio::DOUBLE), 0) AS sum_ratio
FROM nodes
GROUP BY run_id, domain, prompt_id, depth
ORDER BY run_id, domain, prompt_id, depth
