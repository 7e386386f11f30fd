<?php

/**
 * Exchanges random values, in both directions.
 *
 * `php exchange.php make N SEED`: prints N lines `base64(serialize(value)) TAB json`.
 * `php exchange.php echo`: reads lines of base64 bytes and prints for each
 * `base64(serialize(unserialize(bytes))) TAB json`, or `ERROR message`.
 *
 * `json` is the document of the value (see document.php).
 */

require __DIR__ . '/classes.php';
require __DIR__ . '/document.php';
require __DIR__ . '/lines.php';
require __DIR__ . '/random.php';

/** Limits the size of documents, in which shared values are repeated. */
const LARGEST_MADE = 2000;

const LARGEST_ECHOED = 1000000;

function encoded(mixed $value, int $limit): string
{
    Bodies::$of = [];
    $php = serialize($value);

    return base64_encode($php) . "\t" . Document::of($value, $limit) . "\n";
}

/** PHP does not always read back what it wrote, for example where `R:` leads to an object that was no reference. */
function is_stable(string $php): bool
{
    [$ok, $value] = attempt($php);

    return $ok && serialize($value) === $php;
}

function make(int $count, int $seed): void
{
    $values = new RandomValues($seed);
    while ($count > 0) {
        try {
            $value = $values->next();
            $line = encoded($value, LARGEST_MADE);
        } catch (LengthException) {
            continue;
        }
        if (is_stable(base64_decode(strstr($line, "\t", true)))) {
            echo $line;
            $count--;
        }
    }
}

function echo_back(): void
{
    while (($line = fgets(STDIN)) !== false) {
        $php = base64_decode(rtrim($line, "\r\n"), true);
        [$ok, $value] = $php === false ? [false, 'not base64'] : attempt($php);
        try {
            echo $ok ? encoded($value, LARGEST_ECHOED) : refusal($value);
        } catch (Throwable $e) {
            echo refusal(get_class($e) . ': ' . $e->getMessage());
        }
        unset($value);
    }
}

function refusal(string $message): string
{
    return 'ERROR ' . strtr($message, "\r\n\t", '   ') . "\n";
}

match ($argv[1] ?? '') {
    'make' => make((int) ($argv[2] ?? 1000), (int) ($argv[3] ?? 1)),
    'echo' => echo_back(),
    default => fail('usage: exchange.php make N SEED | exchange.php echo'),
};
