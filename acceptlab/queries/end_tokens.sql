-- Tokens that ended a text of the runs.
-- grain: one row per token
-- token_id   the last token of at least one text that ended by EOS
SELECT DISTINCT output_token_ids[len(output_token_ids)] AS token_id
FROM prompts
WHERE stop_reason = 'eos' AND len(output_token_ids) > 0
ORDER BY token_id
