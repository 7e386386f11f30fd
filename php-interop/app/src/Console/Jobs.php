<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\DB;

class Jobs extends Command
{
    protected $signature = 'interop:jobs {--clear} {--forget=}';

    protected $description = 'Print the table of jobs, and what else workers keep in the database, as JSON; or empty them';

    public function handle(): int
    {
        if ($this->option('clear')) {
            foreach (['jobs', 'cache', 'cache_locks'] as $table) {
                DB::table($table)->delete();
            }
        }
        if ($this->option('forget') !== null) {
            // Workers are busy in the table: a deadlock is tried again.
            DB::transaction(fn () => DB::table('jobs')->where('queue', $this->option('forget'))->delete(), 9);
        }
        $jobs = DB::table('jobs')->orderBy('id')->get()->map(fn ($row) => [
            'id' => (int) $row->id,
            'queue' => $row->queue,
            'attempts' => (int) $row->attempts,
            'reserved_at' => $row->reserved_at === null ? null : (int) $row->reserved_at,
            'available_at' => (int) $row->available_at,
            'created_at' => (int) $row->created_at,
            'payload' => $row->payload,
        ]);

        $this->output->writeln(Document::json([
            'jobs' => $jobs->all(),
            'locks' => DB::table('cache_locks')->orderBy('key')->pluck('key')->all(),
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
