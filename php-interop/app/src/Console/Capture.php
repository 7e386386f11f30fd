<?php

namespace App\Console;

use App\Catalogue;
use App\Determinism;
use App\Document;
use App\Recorder;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Redis;

class Capture extends Command
{
    protected $signature = 'interop:capture';

    protected $description = 'Print a fixture line per payload of the whole catalogue (empties the queue `default`)';

    public function handle(): int
    {
        $recorder = new Recorder(describe: true);
        $redis = Redis::connection('default');
        $redis->del('queues:default', 'queues:default:delayed', 'queues:default:notify');

        foreach (Catalogue::kinds() as $kind) {
            Determinism::reseed($kind);
            Catalogue::dispatch($kind);

            $elements = [];
            foreach ($redis->lrange('queues:default', 0, -1) as $element) {
                $elements[] = ['list', $element];
            }
            foreach ($redis->zrange('queues:default:delayed', 0, -1) as $element) {
                $elements[] = ['delayed', $element];
            }
            $redis->del('queues:default', 'queues:default:delayed', 'queues:default:notify');

            foreach ($recorder->take() as $index => $record) {
                [$key, $element] = $elements[$index];
                if (json_decode($element)->uuid !== $record['uuid']) {
                    $this->error("$kind: another job was in Redis than the one just made");

                    return 1;
                }
                $this->output->writeln(Document::json([
                    'kind' => $kind,
                    'category' => Catalogue::category($kind),
                    'key' => $key,
                    'element' => $element,
                    'document' => $record['document'],
                    'defaults' => $record['defaults'],
                    'meta' => $record['meta'],
                ]), $this->output::OUTPUT_RAW);
            }
        }

        return 0;
    }
}
