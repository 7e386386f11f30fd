<?php

/**
 * `php bench.php FILE ITER`: what PHP needs to decode payloads, in nanoseconds per payload.
 *
 * FILE has one queue payload (JSON) per line. Each round goes ITER times over the file; the medians of all rounds are
 * printed as one JSON line. Classes named in the commands are declared first, as empty stubs.
 */

require __DIR__ . '/lines.php';

error_reporting(E_ERROR);
ini_set('display_errors', 'stderr');
ini_set('memory_limit', '-1');

const ROUNDS = 9;

function declare_stub(string $name, string $body): void
{
    $at = strrpos($name, '\\');
    $namespace = $at === false ? '' : 'namespace ' . substr($name, 0, $at) . '; ';
    eval($namespace . sprintf($body, $at === false ? $name : substr($name, $at + 1)));
}

function declare_classes(string $command): void
{
    preg_match_all('/O:\d+:"([^"]+)":\d+:\{/', $command, $classes);
    foreach (array_unique($classes[1]) as $name) {
        if (!class_exists($name)) {
            $parent = match (true) {
                str_ends_with($name, '\CarbonImmutable') => ' extends \DateTimeImmutable',
                str_ends_with($name, '\Carbon') => ' extends \DateTime',
                default => '',
            };
            declare_stub($name, "#[\\AllowDynamicProperties] class %s$parent {}");
        }
    }
    preg_match_all('/E:\d+:"([^":]+):([^"]+)";/', $command, $enums, PREG_SET_ORDER);
    $cases = [];
    foreach ($enums as [, $name, $case]) {
        $cases[$name][$case] = "case $case;";
    }
    foreach ($cases as $name => $lines) {
        if (!enum_exists($name)) {
            declare_stub($name, 'enum %s { ' . implode(' ', $lines) . ' }');
        }
    }
}

/** Nanoseconds per item of one round. */
function round_of(array $items, int $iterations, callable $work): float
{
    $start = hrtime(true);
    for ($i = 0; $i < $iterations; $i++) {
        foreach ($items as $item) {
            $work($item);
        }
    }

    return (hrtime(true) - $start) / $iterations / max(1, count($items));
}

function median_of(array $items, int $iterations, callable $work): float
{
    $rounds = [];
    for ($i = 0; $i < ROUNDS; $i++) {
        $nothing = round_of($items, $iterations, fn ($item) => null);
        $rounds[] = round_of($items, $iterations, $work) - $nothing;
    }
    sort($rounds);

    return round($rounds[intdiv(ROUNDS, 2)], 1);
}

if (!is_file($argv[1] ?? '')) {
    fail('usage: bench.php FILE ITER');
}
$payloads = file($argv[1], FILE_IGNORE_NEW_LINES | FILE_SKIP_EMPTY_LINES) ?: fail("$argv[1] has no lines");
$iterations = max(1, (int) ($argv[2] ?? 1000));

$commands = [];
foreach ($payloads as $number => $payload) {
    $decoded = json_decode($payload, true) ?? fail('line ' . ($number + 1) . ' is not JSON');
    $command = $decoded['data']['command'] ?? '';
    if (is_string($command) && preg_match('/^[OC]:/', $command)) {
        $commands[] = $command;
    }
}
declare_classes(implode("\n", $commands));
$objects = array_map(fn ($command) => unserialize($command) ?: fail("cannot read $command"), $commands);

line([
    'php' => PHP_VERSION,
    'payloads' => count($payloads),
    'payload_bytes' => round(array_sum(array_map('strlen', $payloads)) / count($payloads), 1),
    'commands' => count($commands),
    'command_bytes' => round(array_sum(array_map('strlen', $commands)) / max(1, count($commands)), 1),
    'json_decode_ns' => median_of($payloads, $iterations, fn ($payload) => json_decode($payload, true)),
    'unserialize_ns' => median_of($commands, $iterations, fn ($command) => unserialize($command)),
    'serialize_ns' => median_of($objects, $iterations, fn ($object) => serialize($object)),
]);
