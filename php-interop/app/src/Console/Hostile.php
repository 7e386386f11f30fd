<?php

namespace App\Console;

use App\Document;
use App\Jobs\Hostile as Job;
use App\Jobs\HostileOnce;
use Illuminate\Console\Command;

class Hostile extends Command
{
    protected $signature = 'interop:hostile {jobs}';

    protected $description = 'Put jobs of App\Jobs\Hostile on the queue: a JSON list of {id, misdeed, tries, timeout, stubborn, weight, unique, then}';

    public function handle(): int
    {
        $jobs = json_decode($this->argument('jobs'), true, 16, JSON_THROW_ON_ERROR);
        foreach ($jobs as $of) {
            $class = ($of['unique'] ?? false) ? HostileOnce::class : Job::class;
            $job = new $class($of['id'], $of['misdeed']);
            $job->tries = $of['tries'] ?? null;
            $job->timeout = $of['timeout'] ?? null;
            $job->stubborn = $of['stubborn'] ?? false;
            $job->weight = str_repeat('x', $of['weight'] ?? 0);
            if (isset($of['then'])) {
                $job->chain([new Job($of['then'], 'dozes')]);
            }
            dispatch($job);
        }
        $this->output->writeln(Document::json(['count' => count($jobs)]));

        return 0;
    }
}
