-- Mean and variance of an outcome within a step, by how the step's nodes spread over depths: the moments of an
-- exchange of depths within steps.
-- parameters: $outcome: 'accepted' (over tested nodes), 'argmax' (over all) or 'ratio' (over nodes that have one)
-- grain: one row per group and pattern of depths
-- label          group of the prompt (table prompt_groups)
-- depths         depths that the step has, in order
-- sizes          its nodes at each of them (count)
-- n_steps        steps with that pattern (count)
-- sum_mean       sum over them of the outcome's mean within the step
-- sum_variance   sum over them of its variance within the step, n - 1 in the denominator; 0 for a single node
WITH labelled AS (
    SELECT
        label,
        run_id,
        prompt_id,
        step,
        depth,
        CASE $outcome
            WHEN 'accepted' THEN (outcome = 'accepted')::INTEGER::DOUBLE
            WHEN 'argmax' THEN is_target_argmax::INTEGER::DOUBLE
            ELSE accept_ratio::DOUBLE
        END AS y
    FROM nodes
    JOIN prompt_groups USING (run_id, prompt_id)
    WHERE $outcome <> 'accepted' OR outcome <> 'untested'
),

cells AS (
    SELECT label, run_id, prompt_id, step, depth, count(*) AS size, sum(y) AS total, sum(y * y) AS squares
    FROM labelled
    WHERE y IS NOT NULL
    GROUP BY label, run_id, prompt_id, step, depth
),

steps_of AS (
    SELECT
        label,
        list(depth ORDER BY depth) AS depths,
        list(size ORDER BY depth) AS sizes,
        sum(size) AS n,
        sum(total) AS total,
        sum(squares) AS squares
    FROM cells
    GROUP BY label, run_id, prompt_id, step
)

SELECT
    label,
    depths,
    sizes,
    count(*) AS n_steps,
    sum(total / n) AS sum_mean,
    sum(CASE WHEN n > 1 THEN greatest(squares - total * total / n, 0) / (n - 1) ELSE 0 END) AS sum_variance
FROM steps_of
GROUP BY label, depths, sizes
ORDER BY label, depths, sizes
