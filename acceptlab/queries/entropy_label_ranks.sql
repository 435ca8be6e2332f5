-- Rank sums for Spearman's coefficient of entropy with a yes/no label of the nodes.
-- parameters: $label 'accepted' (over tested nodes) or 'argmax' (is_target_argmax, over all nodes);
--             $by_group, $by_depth: ranks are taken within the group, within the depth, or over everything
-- grain: one row per scope and prompt
-- scope        group of the scope; null where pooled
-- depth        depth of the scope; null where pooled
-- prompt       number of the prompt (table prompt_groups)
-- n            nodes (count)
-- sum_draft, sum_target          sums of the scaled mid-ranks of draft_entropy and target_entropy
-- sum_draft_sq, sum_target_sq    sums of their squares
-- sum_y, sum_yy                  sums of the label less 1/2, and of its square
-- sum_draft_y, sum_target_y      sums of the products with the label less 1/2
-- A scaled mid-rank is (mid-rank - (N + 1)/2) / N in a scope of N nodes. A two-valued label is an affine function
-- of its own rank, so it needs no ranking.
WITH labelled AS (
    SELECT
        CASE WHEN $by_group THEN label END AS scope,
        CASE WHEN $by_depth THEN depth END AS depth,
        prompt,
        draft_entropy,
        target_entropy,
        CASE
            WHEN $label = 'accepted' THEN (outcome = 'accepted')::DOUBLE
            ELSE is_target_argmax::DOUBLE
        END - 0.5 AS y
    FROM nodes
    JOIN prompt_groups USING (run_id, prompt_id)
    WHERE $label = 'argmax' OR outcome <> 'untested'
),

pairs AS (
    SELECT *
    FROM labelled
    WHERE y IS NOT NULL AND draft_entropy IS NOT NULL AND target_entropy IS NOT NULL
),

sizes AS (
    SELECT scope, depth, count(*) AS size
    FROM pairs
    GROUP BY scope, depth
),

ranked AS (
    SELECT
        scope,
        depth,
        prompt,
        y,
        -- with ties, rank() is the first and the running count the last of the equal rows
        (rank() OVER by_draft + count(*) OVER by_draft) / 2.0 AS draft_rank,
        (rank() OVER by_target + count(*) OVER by_target) / 2.0 AS target_rank
    FROM pairs
    WINDOW
        by_draft AS (PARTITION BY scope, depth ORDER BY draft_entropy),
        by_target AS (PARTITION BY scope, depth ORDER BY target_entropy)
),

scaled AS (
    SELECT
        ranked.scope,
        ranked.depth,
        prompt,
        y,
        (draft_rank - (size + 1) / 2.0) / size AS draft,
        (target_rank - (size + 1) / 2.0) / size AS target
    FROM ranked
    JOIN sizes ON ranked.scope IS NOT DISTINCT FROM sizes.scope AND ranked.depth IS NOT DISTINCT FROM sizes.depth
)

SELECT
    scope,
    depth,
    prompt,
    count(*) AS n,
    sum(draft) AS sum_draft,
    sum(target) AS sum_target,
    sum(draft * draft) AS sum_draft_sq,
    sum(target * target) AS sum_target_sq,
    sum(y) AS sum_y,
    sum(y * y) AS sum_yy,
    sum(draft * y) AS sum_draft_y,
    sum(target * y) AS sum_target_y
FROM scaled
GROUP BY scope, depth, prompt
ORDER BY scope, depth, prompt
