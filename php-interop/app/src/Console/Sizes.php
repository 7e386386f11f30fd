<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Redis;

class Sizes extends Command
{
    protected $signature = 'interop:sizes {queue=default}';

    protected $description = 'Print how much is in the four keys of a queue, as JSON';

    public function handle(): int
    {
        $redis = Redis::connection('default');
        $key = 'queues:'.$this->argument('queue');

        $this->output->writeln(Document::json([
            'pending' => $redis->llen($key),
            'delayed' => $redis->zcard($key.':delayed'),
            'reserved' => $redis->zcard($key.':reserved'),
            'notify' => $redis->llen($key.':notify'),
        ]));

        return 0;
    }
}
