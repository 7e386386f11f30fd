<?php

namespace App\Console;

use App\Document;
use App\Jobs\Debounced;
use App\Jobs\EncryptedJournal;
use App\Jobs\Guarded;
use App\Jobs\GuardedNamed;
use App\Jobs\Journal as Job;
use App\Jobs\UniqueJournal;
use App\Recorder;
use Illuminate\Console\Command;

class Journal extends Command
{
    protected $signature = 'interop:journal {id} {--script=} {--queue=} {--delay=}
        {--tries=} {--backoff=} {--timeout=} {--max-exceptions=} {--retry-until=} {--fail-on-timeout}
        {--encrypted} {--unique}
        {--guards=} {--through=} {--group=} {--muted} {--named} {--debounced}';

    protected $description = 'Put one App\Jobs\Journal on the queue';

    public function handle(): int
    {
        $recorder = new Recorder(describe: false);

        $class = match (true) {
            $this->option('encrypted') => EncryptedJournal::class,
            $this->option('debounced') => Debounced::class,
            $this->option('unique') => UniqueJournal::class,
            $this->option('named') => GuardedNamed::class,
            $this->option('guards') !== null => Guarded::class,
            default => Job::class,
        };
        $job = new $class($this->argument('id'), array_filter(explode(',', (string) $this->option('script'))));
        $group = (string) $this->option('group');
        if ($job instanceof Guarded) {
            $job->guards = json_decode($this->option('guards') ?? '[]', true, 16, JSON_THROW_ON_ERROR);
            $job->group = $group;
            $job->muted = (bool) $this->option('muted');
        }
        if ($this->option('through') !== null) {
            $through = json_decode($this->option('through'), true, 16, JSON_THROW_ON_ERROR);
            $job->through(Guarded::build($through, $group));
        }
        $job->tries = $this->number('tries');
        $job->timeout = $this->number('timeout');
        $job->maxExceptions = $this->number('max-exceptions');
        if ($this->option('backoff') !== null) {
            $backoff = array_map('intval', explode(',', $this->option('backoff')));
            $job->backoff = count($backoff) === 1 ? $backoff[0] : $backoff;
        }
        if ($this->option('retry-until') !== null) {
            $job->retryUntil = time() + $this->number('retry-until');
        }
        if ($this->option('fail-on-timeout')) {
            $job->failOnTimeout = true;
        }
        if ($this->option('queue') !== null) {
            $job->onQueue($this->option('queue'));
        }
        if ($this->option('delay') !== null) {
            $job->delay($this->number('delay'));
        }

        dispatch($job);

        foreach ($recorder->take() as $record) {
            $this->output->writeln(Document::json(['uuid' => $record['uuid'], 'id' => $record['id']]));
        }

        return 0;
    }

    private function number(string $option): ?int
    {
        $value = $this->option($option);

        return $value === null ? null : (int) $value;
    }
}
