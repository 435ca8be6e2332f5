-- Windows along one path of the drafted trees (table path_nodes: run_id, node): path weights and next overlaps.
-- parameters: $measure: what a position's ratio b and overlap a are
--                 'sampled'  accept_ratio of the node and overlap of its context: the node was drawn from the draft
--                 'argmax'   both are 1 where the node is the target's argmax, else 0 (rule greedy)
--                 'onehot'   both are the node's target_prob (rule onehot tries the first child with it)
--             $ends: tokens that end a text
-- grain: one row per prompt of a run and depth of the path
-- run_id, domain, prompt_id  keys
-- depth         distance from the root, from 1; k below
-- n_steps       steps with that depth (count)
-- sum_overlap   sum of a_k; 0 below a token that ends a text, as are b and everything made of them
-- sum_branch    sum of B_(k-1) a_k, B the product of b_1..b_(k-1)
-- sum_weight    sum of B_(k-1); B_0 = 1
-- sum_ratio     sum of b_(k-1); 0 at depth 1
-- sum_pair      sum of b_(k-1) a_k; 0 at depth 1
-- sum_path      sum of B_k
-- sum_wtv       sum of a_1 a_2 ... a_k
WITH path AS (
    SELECT
        run_id,
        domain,
        prompt_id,
        step,
        depth,
        CASE $measure
            WHEN 'sampled' THEN coalesce(accept_ratio, 0)
            WHEN 'argmax' THEN is_target_argmax::INTEGER
            ELSE target_prob
        END::DOUBLE AS b,
        CASE $measure
            WHEN 'sampled' THEN overlap
            WHEN 'argmax' THEN is_target_argmax::INTEGER
            ELSE target_prob
        END::DOUBLE AS a,
        list_contains($ends, token_id) AS is_end
    FROM nodes
    JOIN path_nodes USING (run_id, node)
),

marked AS (
    SELECT *, coalesce(bool_or(is_end) OVER above, false) AS has_ended
    FROM path
    WINDOW above AS (
        PARTITION BY run_id, prompt_id, step ORDER BY depth ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),

masked AS (
    SELECT
        run_id,
        domain,
        prompt_id,
        step,
        depth,
        CASE WHEN has_ended THEN 0 ELSE a END AS a,
        CASE WHEN has_ended THEN 0 ELSE b END AS b
    FROM marked
),

weighted AS (
    SELECT
        run_id,
        domain,
        prompt_id,
        depth,
        a,
        b,
        coalesce(product(b) OVER above, 1) AS weight,
        coalesce(lag(b) OVER by_depth, 0) AS ratio,
        product(a) OVER by_depth AS wtv
    FROM masked
    WINDOW
        by_depth AS (PARTITION BY run_id, prompt_id, step ORDER BY depth),
        above AS (
            PARTITION BY run_id, prompt_id, step ORDER BY depth ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
)

SELECT
    run_id,
    domain,
    prompt_id,
    depth,
    count(*) AS n_steps,
    sum(a) AS sum_overlap,
    sum(weight * a) AS sum_branch,
    sum(weight) AS sum_weight,
    sum(ratio) AS sum_ratio,
    sum(ratio * a) AS sum_pair,
    sum(weight * b) AS sum_path,
    sum(wtv) AS sum_wtv
FROM weighted
GROUP BY run_id, domain, prompt_id, depth
ORDER BY run_id, domain, prompt_id, depth
