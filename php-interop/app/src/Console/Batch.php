<?php

namespace App\Console;

use App\BatchNote;
use App\Document;
use App\Jobs\BatchJournal;
use App\Recorder;
use Illuminate\Bus\Batch as QueuedBatch;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;
use Throwable;

class Batch extends Command
{
    private const CALLBACKS = ['before', 'progress', 'then', 'catch', 'failure', 'finally'];

    protected $signature = 'interop:batch {scripts*} {--allow-failures} {--queue=} {--name=}
        {--before} {--progress} {--then} {--catch} {--failure} {--finally}';

    protected $description = 'Dispatch a batch of App\Jobs\BatchJournal, one for each script, with callbacks that write notes';

    public function handle(): int
    {
        $recorder = new Recorder(describe: false);

        $jobs = [];
        foreach ($this->argument('scripts') as $number => $script) {
            $jobs[] = new BatchJournal("member-$number", explode(',', $script));
        }
        $batch = Bus::batch($jobs)->name((string) $this->option('name'));
        if ($this->option('allow-failures')) {
            $batch->allowFailures();
        }
        if ($this->option('queue') !== null) {
            $batch->onQueue($this->option('queue'));
        }
        foreach (self::CALLBACKS as $callback) {
            if ($this->option($callback)) {
                // Callbacks of failures are passed to `allowFailures`.
                $method = $callback === 'failure' ? 'allowFailures' : $callback;
                $batch->$method(static function (QueuedBatch $batch, ?Throwable $e = null) use ($callback) {
                    BatchNote::write($callback, $batch, $e);
                });
            }
        }

        $this->output->writeln(Document::json([
            'id' => $batch->dispatch()->id,
            'uuids' => array_column($recorder->take(), 'uuid'),
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
