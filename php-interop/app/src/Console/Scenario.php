<?php

namespace App\Console;

use Acme\Queued\Jobs\Convert;
use Acme\Queued\Jobs\ConvertVideo;
use App\BatchNote;
use App\Jobs\AddingJournal;
use App\Jobs\BatchJournal;
use App\Jobs\EncryptedBatchJournal;
use App\Jobs\EncryptedJournal;
use App\Jobs\Journal as Job;
use App\Jobs\UniqueBatchJournal;
use App\Jobs\UniqueJournal;
use App\Jobs\UniqueUntilJournal;
use Illuminate\Bus\Batch;
use Illuminate\Bus\ChainedBatch;
use Illuminate\Bus\PendingBatch;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;
use Illuminate\Support\Facades\Context;
use InvalidArgumentException;
use Throwable;

/**
 * Pushes jobs to the queues `a`, `b` and `c` whose ends cause more work.
 *
 * Prints nothing: tests check the queues, the journal, the database and the
 * locks.
 */
class Scenario extends Command
{
    protected $signature = 'interop:scenario {name}';

    protected $description = 'Queue the jobs of a scenario of chains, batches and locks';

    public function handle(): int
    {
        $name = $this->argument('name');
        if (class_exists(Context::class)) {
            // That of a job which this process has run.
            Context::flush();
        }
        match ($name) {
            'chain' => $this->chain([
                $this->job('1')->onQueue('a'),
                $this->job('2')->onQueue('b'),
                $this->job('3')->onQueue('c')->delay(2),
                (new EncryptedJournal('4'))->onQueue('a'),
                $this->job('5', tries: 4, backoff: [2, 3]),
                $this->job('6')->onQueue('b'),
            ])->dispatch(),
            'chain-retried' => $this->chain([
                $this->job('1'), $this->job('2', 'throw,release:0,ok', tries: 5), $this->job('3', 'delete'), $this->job('4'),
            ])->dispatch(),
            'chain-fails' => $this->chain([
                $this->job('1'), $this->job('2', 'fail'), $this->job('3'),
            ])->dispatch(),
            'chain-throws' => $this->chain([
                $this->job('1'), $this->job('2', 'throw'), $this->job('3'),
            ])->dispatch(),
            'chain-with-closure' => $this->chain([
                $this->job('1'), self::note('closure'), $this->job('3'), $this->job('4'),
            ])->dispatch(),
            'chain-with-batch' => $this->chain([
                $this->job('1'),
                ...(class_exists(ChainedBatch::class) ? [Bus::batch([$this->member('2'), $this->member('3')])] : []),
                $this->job('4'),
            ])->dispatch(),
            'chain-with-unique' => $this->chain([
                $this->job('1'), new UniqueJournal('2'), $this->job('3'), new UniqueUntilJournal('4'), $this->job('5'),
            ])->dispatch(),
            'chain-with-taken' => $this->taken(),
            'chain-elsewhere' => $this->chain([
                $this->job('1'), $this->job('2')->onConnection('elsewhere')->onQueue('far'),
                $this->job('3')->onConnection('elsewhere')->onQueue('farther')->delay(2),
                $this->job('4')->onConnection('redis')->onQueue('b'),
            ])->dispatch(),
            'chain-to-a-table' => $this->chain([
                $this->job('1'), $this->job('2')->onConnection('database')->onQueue('table'),
            ])->dispatch(),
            'chain-of-encrypted' => $this->chain([
                new EncryptedJournal('1'), self::note('closure'), $this->job('3'),
            ])->dispatch(),
            'unique' => $this->each([new UniqueJournal('1'), new UniqueJournal('1'), new UniqueJournal('2', ['throw'])]),
            'unique-retried' => $this->each([$this->tried(new UniqueJournal('1', ['throw', 'release:0', 'ok']))]),
            'unique-deleted' => $this->each([new UniqueJournal('1', ['delete']), new UniqueJournal('2', ['fail'])]),
            'until-processing' => $this->each([
                new UniqueUntilJournal('1'), new UniqueUntilJournal('1'), $this->tried(new UniqueUntilJournal('2', ['throw', 'ok'])),
            ]),
            'batch' => $this->batch(['ok', 'ok', 'ok'])->dispatch(),
            'batch-fails' => $this->batch(['ok', 'fail', 'ok'])->dispatch(),
            'batch-allowed' => $this->batch(['ok', 'throw', 'delete', 'fail'])->allowFailures()->dispatch(),
            'batch-failing-last' => $this->batch(['ok', 'ok', 'throw'])->allowFailures()->dispatch(),
            'batch-progress' => $this->progressing($this->batch(['ok', 'fail', 'ok'])->allowFailures())->dispatch(),
            'batch-silent' => Bus::batch([$this->member('1'), $this->member('2', 'fail')])->onQueue('b')
                ->allowFailures()->dispatch(),
            'batch-of-chains' => Bus::batch([
                [$this->member('1'), $this->member('2')],
                [$this->member('3'), $this->member('4', 'fail'), $this->member('5')],
                $this->member('6'),
            ])->onQueue('a')->then(self::noted('then'))->finally(self::noted('finally'))->catch(self::noted('catch'))->dispatch(),
            'batch-growing' => Bus::batch([$this->adding('1')])->onQueue('b')
                ->then(self::noted('then'))->catch(self::noted('catch'))->finally(self::noted('finally'))->dispatch(),
            'batch-growing-silently' => Bus::batch([$this->adding('1')])->allowFailures()->dispatch(),
            'batch-growing-by-packages' => Bus::batch([
                (new AddingJournal('1'))->adding([new Convert('a.png'), new ConvertVideo('a.mp4')]),
            ])->dispatch(),
            default => throw new InvalidArgumentException("no scenario `$name`"),
        };

        return 0;
    }

    private function job(string $id, string $script = 'ok', ?int $tries = null, array $backoff = []): Job
    {
        $job = new Job($id, $script === 'ok' ? [] : explode(',', $script));
        $job->tries = $tries;
        $job->backoff = $backoff ?: ($tries === null ? null : 0);

        return $job;
    }

    private function member(string $id, string $script = 'ok'): BatchJournal
    {
        return new BatchJournal($id, $script === 'ok' ? [] : explode(',', $script));
    }

    /** Adds jobs of all kinds, and one that adds jobs itself. */
    private function adding(string $id): AddingJournal
    {
        $last = (new AddingJournal("$id.6"))->adding([$this->member("$id.7"), new UniqueBatchJournal("$id.8")]);

        return (new AddingJournal($id))->adding([
            $this->tried($this->member("$id.1"))->onQueue('c'),
            [$this->member("$id.2")->onQueue('c'), $this->member("$id.3")->onQueue('a'), new EncryptedBatchJournal("$id.4")],
            (new EncryptedBatchJournal("$id.5"))->delay(2),
            [$last],
        ]);
    }

    private function tried(Job $job): Job
    {
        $job->tries = 5;
        $job->backoff = 0;

        return $job;
    }

    private function chain(array $jobs)
    {
        return Bus::chain($jobs)->onQueue('a')->catch(static function (Throwable $e) {
            Job::write('chain', 'catch', ['message' => $e->getMessage()]);
        });
    }

    /** A job on another queue holds the second job's lock. */
    private function taken(): void
    {
        dispatch((new UniqueJournal('2'))->onQueue('other'));
        $this->chain([$this->job('1'), new UniqueJournal('2'), $this->job('3')])->dispatch();
    }

    private function each(array $jobs): void
    {
        foreach ($jobs as $job) {
            // Dispatched when the pending dispatch is gone.
            dispatch($job->onQueue('a'));
        }
    }

    private function batch(array $scripts): PendingBatch
    {
        $jobs = [];
        foreach ($scripts as $number => $script) {
            $jobs[] = $this->member((string) ($number + 1), $script);
        }

        return Bus::batch($jobs)->onQueue('b')
            ->then(self::noted('then'))->catch(self::noted('catch'))->finally(self::noted('finally'));
    }

    /** Since Laravel 10.37. */
    private function progressing(PendingBatch $batch): PendingBatch
    {
        return method_exists($batch, 'progress') ? $batch->progress(self::noted('progress')) : $batch;
    }

    private static function noted(string $callback): \Closure
    {
        return static function (Batch $batch, ?Throwable $e = null) use ($callback) {
            BatchNote::write($callback, $batch, $e);
        };
    }

    private static function note(string $event): \Closure
    {
        return static function () use ($event) {
            Job::write('closure', $event);
        };
    }
}
