<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;
use Illuminate\Support\Facades\Redis;
use RuntimeException;
use Throwable;

/**
 * Writes a line for each of its runs, and follows its script for that
 * attempt.
 *
 * The journal is the Redis list `interop:journal` (no prefix) of JSON lines:
 *
 *     {"by":"php","id":"a","uuid":"..","attempts":1,"pid":123,"at":1760000000.123456,"event":"run"}
 *
 * `event` is `run`, `failed` or the text of `note`; `failed` has `exception`
 * and `message` too, and its `attempts` is null if this process did not run the
 * job before.
 *
 * A script has one entry per attempt, `ok` when there are none left:
 * `ok`, `throw`, `release:SECONDS`, `fail`, `delete`, `cancel` (its batch), `sleep:SECONDS`,
 * `await:NAME` (until Redis has the key `interop:NAME`), `exit`,
 * `kill` (SIGKILL to itself), `note:EVENT`, `push:ID` (queues another one), `work:OPTION` (`queue:work` with this option),
 * `context` (notes the log context, 11 and later); several are joined with `+`:
 * `sleep:1+throw`.
 */
class Journal implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public const KEY = 'interop:journal';

    /** Attempt numbers of the runs in this process, by id. */
    private static array $runs = [];

    public $tries;

    public $backoff;

    public $timeout;

    public $maxExceptions;

    public $retryUntil;

    public $failOnTimeout;

    public function __construct(public string $id, public array $script = []) {}

    public function handle(): void
    {
        $attempt = self::$runs[$this->id] = $this->attempts();
        $this->note('run');

        foreach (explode('+', $this->script[$attempt - 1] ?? 'ok') as $step) {
            [$verb, $argument] = explode(':', $step.':');
            match ($verb) {
                'ok' => null,
                'throw' => throw new RuntimeException('thrown by the script of '.$this->id),
                'release' => $this->release((int) $argument),
                'fail' => $this->fail(new RuntimeException('failed by the script of '.$this->id)),
                'delete' => $this->delete(),
                'cancel' => $this->batch()->cancel(),
                'sleep' => $this->sleep((float) $argument),
                'await' => $this->await('interop:'.$argument),
                'exit' => exit(3),
                'note' => $this->note($argument),
                'push' => dispatch((new self($argument))->onQueue($this->queue)),
                'work' => \Illuminate\Support\Facades\Artisan::call('queue:work', ['--sleep' => 0, '--'.$argument => true]),
                'context' => $this->note('context', ['context' => \Illuminate\Support\Facades\Context::all()]),
                'kill' => posix_kill(getmypid(), SIGKILL),
            };
        }
    }

    public function failed(?Throwable $exception): void
    {
        $this->note('failed', $exception === null ? [] : [
            'exception' => $exception::class,
            'message' => $exception->getMessage(),
        ]);
    }

    private function note(string $event, array $more = []): void
    {
        self::write($this->id, $event, [
            'uuid' => $this->job?->uuid(),
            'attempts' => self::$runs[$this->id] ?? null,
        ] + $more);
    }

    /** Appends a line to the journal: for a job, or a callback of its batch or chain. */
    public static function write(string $id, string $event, array $more = []): void
    {
        Redis::connection('interop')->rpush(self::KEY, json_encode([
            'by' => 'php',
            'id' => $id,
            'pid' => getmypid(),
            'at' => microtime(true),
            'event' => $event,
        ] + $more, JSON_THROW_ON_ERROR));
    }

    /** The worker's timeout ends it when the key does not come. */
    private function await(string $key): void
    {
        while (! Redis::connection('interop')->exists($key)) {
            usleep(10_000);
        }
    }

    /** Signals end a sleep early; this one continues until its time is over. */
    private function sleep(float $seconds): void
    {
        $end = hrtime(true) + (int) ($seconds * 1e9);
        while (($left = $end - hrtime(true)) > 0) {
            usleep((int) min(100_000, $left / 1000 + 1));
        }
    }
}
