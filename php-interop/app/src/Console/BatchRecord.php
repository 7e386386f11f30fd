<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;
use RuntimeException;

class BatchRecord extends Command
{
    protected $signature = 'interop:batch-record {id} {uuid} {outcome : succeeded or failed}';

    protected $description = 'Let PHP record the end of a job of a batch, callbacks and all';

    public function handle(): int
    {
        $batch = Bus::findBatch($this->argument('id'));
        match ($this->argument('outcome')) {
            'succeeded' => $batch->recordSuccessfulJob($this->argument('uuid')),
            'failed' => $batch->recordFailedJob($this->argument('uuid'), new RuntimeException('recorded')),
        };

        $this->output->writeln(Document::json(['recorded' => true]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
