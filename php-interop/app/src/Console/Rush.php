<?php

namespace App\Console;

use App\Document;
use App\Recorder;
use Illuminate\Console\Command;

class Rush extends Command
{
    protected $signature = 'interop:rush {count} {scripts*} {--class=UniqueJournal} {--ids=20}
        {--pause=0 : microseconds between two of them at most} {--seed=0}';

    protected $description = 'Dispatch unique jobs of few names again and again, and print the uuids of those that were queued';

    public function handle(): int
    {
        $recorder = new Recorder(describe: false);
        mt_srand((int) $this->option('seed'));

        $class = 'App\\Jobs\\'.$this->option('class');
        $scripts = $this->argument('scripts');
        for ($left = (int) $this->argument('count'); $left > 0; $left--) {
            $script = $scripts[mt_rand(0, count($scripts) - 1)];
            $job = new $class('id-'.mt_rand(1, (int) $this->option('ids')), explode(',', $script));
            $job->tries = 5;
            $job->backoff = 0;
            dispatch($job);
            usleep(mt_rand(0, (int) $this->option('pause')));
        }

        $this->output->writeln(Document::json(['uuids' => array_column($recorder->take(), 'uuid')]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
