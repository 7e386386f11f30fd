<?php

/** Prints one line of a fixture. */
function line(array $fields): void
{
    echo json_encode($fields, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR), "\n";
}

function fail(string $message): never
{
    fwrite(STDERR, addcslashes($message, "\0..\37\177..\377") . "\n");
    exit(1);
}

/** What real unserialize() says: `[true, value]` or `[false, reason]`. */
function attempt(string $php): array
{
    error_clear_last();
    try {
        $value = unserialize($php);
    } catch (Throwable $e) {
        return [false, get_class($e) . ': ' . $e->getMessage()];
    }
    if ($value === false && $php !== 'b:0;') {
        return [false, error_get_last()['message'] ?? 'false'];
    }

    return [true, $value];
}

/** The text of a `repeat` line: prefixes, the middle, suffixes. */
function repeated(array $repeat): string
{
    return str_repeat($repeat['prefix'], $repeat['times']) . $repeat['middle'] .
        str_repeat($repeat['suffix'], $repeat['times']);
}
