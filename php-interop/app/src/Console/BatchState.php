<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;

class BatchState extends Command
{
    protected $signature = 'interop:batch-state {id}';

    protected $description = 'Print what PHP makes of a batch, as JSON';

    public function handle(): int
    {
        $batch = Bus::findBatch($this->argument('id'));

        $this->output->writeln(Document::json($batch === null ? null : [
            'id' => $batch->id,
            'name' => $batch->name,
            'total' => $batch->totalJobs,
            'pending' => $batch->pendingJobs,
            'failed' => $batch->failedJobs,
            'failed_ids' => $batch->failedJobIds,
            'processed' => $batch->processedJobs(),
            'progress' => (int) $batch->progress(),
            'has_failures' => $batch->hasFailures(),
            'allows_failures' => $batch->allowsFailures(),
            'created_at' => $batch->createdAt->getTimestamp(),
            'cancelled_at' => $batch->cancelledAt?->getTimestamp(),
            'finished_at' => $batch->finishedAt?->getTimestamp(),
            'queue' => $batch->options['queue'] ?? null,
            'connection' => $batch->options['connection'] ?? null,
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
