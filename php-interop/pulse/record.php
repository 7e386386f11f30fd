<?php
// record.php PULSE: what real Pulse writes about a fixed list of jobs and exceptions, as one JSON object.
//
// PULSE is a checkout of laravel/pulse, which is not kept here. Needs Laravel 10 or later (Debian's, in the roots of
// ../setup.sh): its recorders hear real events, its storage writes to SQLite, and the rows are printed. The answer is
// kept as rows.json, and tests/it/pulse.rs compares what artisand writes on each kind of database.
require '/usr/share/php/Illuminate/autoload.php';
error_reporting(E_ALL & ~E_DEPRECATED);
$source = rtrim($argv[1] ?? exit("usage: record.php PULSE\n"), '/');
spl_autoload_register(function ($class) use ($source) {
    $file = $source.'/src/'.str_replace('\\', '/', substr($class, strlen('Laravel\\Pulse\\'))).'.php';
    if (str_starts_with($class, 'Laravel\\Pulse\\') && is_file($file)) {
        require $file;
    }
});

use Carbon\CarbonImmutable;
use Illuminate\Queue\Events;
use Illuminate\Support\Carbon;
use Laravel\Pulse\Recorders;

$app = new Illuminate\Foundation\Application(sys_get_temp_dir());
$file = tempnam(sys_get_temp_dir(), 'pulse');
$ours = json_decode(file_get_contents(__DIR__.'/jobs.json'), true);
$pulse = require $source.'/config/pulse.php';
$recorders = [];
foreach ($ours['recorders'] as $name => $settings) {
    $class = "Laravel\\Pulse\\Recorders\\{$name}";
    $recorders[$class] = $settings + $pulse['recorders'][$class];
}
$pulse['recorders'] = $recorders;
$pulse['ingest']['trim']['lottery'] = [0, 1];
$app->instance('config', new Illuminate\Config\Repository([
    'app' => ['timezone' => 'UTC', 'key' => str_repeat('k', 32), 'cipher' => 'AES-256-CBC'],
    'database' => ['default' => 'sqlite', 'connections' => ['sqlite' => ['driver' => 'sqlite', 'database' => $file, 'prefix' => '']]],
    'queue' => ['connections' => ['redis' => ['driver' => 'redis', 'queue' => 'default']]],
    'pulse' => $pulse,
]));
Illuminate\Support\Facades\Facade::setFacadeApplication($app);
$app->register(Illuminate\Database\DatabaseServiceProvider::class);
$app->singleton(Laravel\Pulse\Pulse::class, fn ($app) => (new Laravel\Pulse\Pulse($app))->handleExceptionsUsing(fn ($e) => throw $e));
$app->bind(Laravel\Pulse\Contracts\Storage::class, Laravel\Pulse\Storage\DatabaseStorage::class);
$app->bind(Laravel\Pulse\Contracts\Ingest::class, Laravel\Pulse\Ingests\StorageIngest::class);
(require $source.'/database/migrations/2023_06_07_000001_create_pulse_tables.php')->up();
$pulse = $app->make(Laravel\Pulse\Pulse::class);
$exceptions = $app->make(Recorders\Exceptions::class);
$pulse->register(array_diff_key($recorders, [Recorders\Exceptions::class => true]));
$events = $app->make('events');

class PopsNothing extends Illuminate\Queue\Jobs\Job
{
    public function __construct($app, private array $job)
    {
        $this->container = $app;
        [$this->connectionName, $this->queue] = ['redis', $job['queue']];
    }

    public function getJobId()
    {
        return $this->job['uuid'];
    }

    public function getRawBody()
    {
        return json_encode(['uuid' => $this->job['uuid'], 'displayName' => $this->job['name'], 'job' => 'A@b', 'data' => []]);
    }
}

$at = function ($moment) {
    $now = CarbonImmutable::createFromTimestampMs((int) round($moment * 1000));
    Carbon::setTestNow($now);
    CarbonImmutable::setTestNow($now);
};
foreach ($ours['jobs'] as $told) {
    $job = new PopsNothing($app, $told);
    $at($told['begin']);
    $events->dispatch(new Events\JobProcessing('redis', $job));
    $at($told['end']);
    foreach ($told['ends'] as $end) {
        $events->dispatch(match ($end) {
            'processed' => new Events\JobProcessed('redis', $job),
            'released' => new Events\JobReleasedAfterException('redis', $job),
            'failed' => new Events\JobFailed('redis', $job, new RuntimeException('no')),
        });
    }
}
foreach ($ours['exceptions'] as $told) {
    [$space, $name] = explode('\\', $told['class']);
    class_exists($told['class']) || eval("namespace {$space}; class {$name} extends \\Exception {}");
    $at($told['at']);
    $exceptions->record(new $told['class']('no'));
}
$at($ours['now']);
$pulse->ingest();
$rows = fn ($table, $columns) => $app->make('db')->table($table)->get($columns)->map(fn ($row) => array_values((array) $row))->sort()->values();
echo json_encode([
    'made_by' => 'laravel/pulse '.trim((string) shell_exec('git -C '.escapeshellarg($source).' describe --tags --always 2>/dev/null') ?: ($argv[2] ?? 'unknown')).', Laravel '.$app->version().', PHP '.PHP_VERSION,
    'pulse_aggregates' => $rows('pulse_aggregates', ['aggregate', 'type', 'period', 'bucket', 'key', 'key_hash', 'value', 'count']),
    'pulse_entries' => $rows('pulse_entries', ['timestamp', 'type', 'key', 'key_hash', 'value']),
], JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE), "\n";
unlink($file);
