<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\DB;

class Tables extends Command
{
    protected $signature = 'interop:tables';

    protected $description = 'Print the batches and the failed jobs as JSON, without what differs from run to run';

    public function handle(): int
    {
        $batches = DB::table('job_batches')->orderBy('id')->get()->map(fn ($row) => [
            'name' => $row->name,
            'total_jobs' => (int) $row->total_jobs,
            'pending_jobs' => (int) $row->pending_jobs,
            'failed_jobs' => (int) $row->failed_jobs,
            'failed_job_ids' => count(json_decode($row->failed_job_ids)),
            'cancelled' => $row->cancelled_at !== null,
            'finished' => $row->finished_at !== null,
        ]);
        $failed = DB::table('failed_jobs')->orderBy('id')->get()->map(fn ($row) => [
            'connection' => $row->connection,
            'queue' => $row->queue,
            'displayName' => json_decode($row->payload)->displayName,
            'message' => preg_replace('/^[\w\\\\]+: (.*?) in .*/s', '$1', $row->exception),
        ]);

        $this->output->writeln(Document::json([
            'batches' => $batches->all(), 'failed' => $failed->all(),
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
