<?php

namespace App\Console;

use App\Catalogue;
use App\Document;
use App\Recorder;
use App\RecordingQueue;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Queue;

class Describe extends Command
{
    protected $signature = 'interop:describe {kind=all}';

    protected $description = 'Print what PHP says of a kind, without queueing anything';

    public function handle(): int
    {
        config(['queue.connections.redis.driver' => 'recording']);
        Queue::addConnector('recording', fn () => new class
        {
            public function connect(array $config): RecordingQueue
            {
                return new RecordingQueue;
            }
        });
        $recorder = new Recorder(describe: true);

        foreach (Catalogue::kinds($this->argument('kind')) as $kind) {
            Catalogue::dispatch($kind);
            foreach ($recorder->take() as $record) {
                unset($record['uuid'], $record['id'], $record['queue']);
                $this->output->writeln(Document::json(
                    ['kind' => $kind, 'category' => Catalogue::category($kind)] + $record
                ), $this->output::OUTPUT_RAW);
            }
        }

        return 0;
    }
}
