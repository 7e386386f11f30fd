<?php

namespace App\Console;

use App\Document;
use App\Jobs\Journal as Job;
use App\Recorder;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;
use Throwable;

class Chain extends Command
{
    protected $signature = 'interop:chain {id} {scripts*} {--queue=} {--tries=} {--encrypted}
        {--classes= : of the jobs, in turn} {--queues= : the same} {--without-catch}';

    protected $description = 'Queue a chain of App\Jobs\Journal, one per script, whose catch callback writes to the journal';

    public function handle(): int
    {
        $recorder = new Recorder(describe: false);

        $id = $this->argument('id');
        $classes = $this->turns('classes', [$this->option('encrypted') ? 'EncryptedJournal' : 'Journal']);
        $queues = $this->turns('queues', [null]);
        $jobs = [];
        foreach ($this->argument('scripts') as $number => $script) {
            $class = 'App\\Jobs\\'.$classes[$number % count($classes)];
            $jobs[] = $job = new $class($id.'-'.($number + 1), array_filter(explode(',', $script)));
            $job->tries = $this->option('tries') === null ? null : (int) $this->option('tries');
            $job->onQueue($queues[$number % count($queues)]);
        }
        $chain = Bus::chain($jobs);
        if (! $this->option('without-catch')) {
            $chain->catch(static function (Throwable $e) use ($id) {
                Job::write($id, 'catch', ['exception' => $e::class, 'message' => $e->getMessage()]);
            });
        }
        if ($this->option('queue') !== null) {
            $chain->onQueue($this->option('queue'));
        }
        $chain->dispatch();

        foreach ($recorder->take() as $record) {
            $this->output->writeln(Document::json(['uuid' => $record['uuid'], 'id' => $record['id']]));
        }

        return 0;
    }

    private function turns(string $option, array $default): array
    {
        $given = $this->option($option);

        return $given === null ? $default : explode(',', $given);
    }
}
