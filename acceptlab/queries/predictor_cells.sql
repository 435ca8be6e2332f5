-- Sums of three outcomes by prompt and depth: what a table of group by depth is made of.
-- grain: one row per prompt of a run and depth
-- run_id, domain, prompt_id  keys
-- depth              distance from the root, from 1
-- n_x, sum_x, sq_x   nodes (count), sum of the outcome, sum of its square
--    x = accepted    whether the rule accepted the node, over tested nodes
--    x = argmax      whether the token is the target's argmax, over all nodes
--    x = ratio       accept_ratio, over all nodes that have one
SELECT
    run_id,
    domain,
    prompt_id,
    depth,
    count(*) FILTER (outcome <> 'untested') AS n_accepted,
    count(*) FILTER (outcome = 'accepted') AS sum_accepted,
    count(*) FILTER (outcome = 'accepted') AS sq_accepted,
    count(*) AS n_argmax,
    count(*) FILTER (is_target_argmax) AS sum_argmax,
    count(*) FILTER (is_target_argmax) AS sq_argmax,
    count(accept_ratio) AS n_ratio,
    coalesce(sum(accept_ratio::DOUBLE), 0) AS sum_ratio,
    coalesce(sum(accept_ratio::DOUBLE ** 2), 0) AS sq_ratio
FROM nodes
GROUP BY run_id, domain, prompt_id, depth
ORDER BY run_id, domain, prompt_id, depth
