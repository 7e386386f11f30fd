<?php

namespace App\Console;

use Illuminate\Console\Command;
use Illuminate\Support\Facades\Queue;

class Flood extends Command
{
    protected $signature = 'interop:flood {count} {--queue=} {--class=Counted} {--from=0} {--chunk=500}';

    protected $description = 'Put many numbered jobs on the queue, some hundred per round trip';

    public function handle(): int
    {
        $class = 'App\\Jobs\\'.$this->option('class');
        $next = (int) $this->option('from');
        $end = $next + (int) $this->argument('count');
        $chunk = max(1, (int) $this->option('chunk'));

        while ($next < $end) {
            $jobs = [];
            for ($stop = min($end, $next + $chunk); $next < $stop; $next++) {
                $jobs[] = new $class($next);
            }
            // The driver pushes each job as usual, in one pipeline.
            Queue::bulk($jobs, '', $this->option('queue'));
        }

        return 0;
    }
}
