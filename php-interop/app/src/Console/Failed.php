<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\DB;

class Failed extends Command
{
    protected $signature = 'interop:failed';

    protected $description = 'Print what is in the store of failed jobs, as JSON';

    public function handle(): int
    {
        $config = config('queue.failed');
        $count = match ($config['driver']) {
            'database', 'database-uuids' => DB::connection($config['database'])->table($config['table'])->count(),
            'file' => is_file($config['path']) ? count(json_decode(file_get_contents($config['path']))) : 0,
            default => 0,
        };

        $this->output->writeln(Document::json([
            'count' => $count,
            // Before Laravel 9 texts of exceptions are stored as they are.
            'jobs' => array_map(fn ($job) => array_map(
                fn ($text) => is_string($text) ? mb_scrub($text, 'UTF-8') : $text, (array) $job
            ), $this->laravel['queue.failer']->all()),
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
