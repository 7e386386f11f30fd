<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Cache as Store;

class Cache extends Command
{
    protected $signature = 'interop:cache {do} {key} {value?} {seconds?} {--store=}';

    protected $description = 'Do something with a cache key (put, forever, get, add, increment, decrement, forget, has)';

    public function handle(): int
    {
        $store = Store::store($this->option('store'));
        $key = $this->argument('key');
        $json = $this->argument('value');
        $value = $json === null ? null : json_decode($json, true, 512, JSON_THROW_ON_ERROR);
        $seconds = $this->argument('seconds') === null ? null : (int) $this->argument('seconds');

        $result = match ($this->argument('do')) {
            'put' => $store->put($key, $value, $seconds),
            'forever' => $store->forever($key, $value),
            'get' => $store->get($key),
            'add' => $store->add($key, $value, $seconds),
            'increment' => $store->increment($key, $value ?? 1),
            'decrement' => $store->decrement($key, $value ?? 1),
            'forget' => $store->forget($key),
            'has' => $store->has($key),
        };
        $this->output->writeln(Document::json(['result' => $result]), $this->output::OUTPUT_RAW);

        return 0;
    }
}
