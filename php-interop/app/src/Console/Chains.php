<?php

namespace App\Console;

use Acme\Queued\Jobs\Convert;
use Acme\Queued\Jobs\ConvertVideo;
use App\Catalogue;
use App\Document;
use App\Events\ArticleRead;
use App\Events\ScoreChanged;
use App\Jobs as J;
use App\Listeners\CountReading;
use App\Mail\OrderConfirmation;
use App\Models\User;
use App\Notifications\InvoicePaid;
use App\Seen;
use App\Values\Node;
use Carbon\CarbonImmutable;
use Illuminate\Broadcasting\BroadcastEvent;
use Illuminate\Console\Command;
use Illuminate\Events\CallQueuedListener;
use Illuminate\Foundation\Console\QueuedCommand;
use Illuminate\Mail\SendQueuedMailable;
use Illuminate\Notifications\SendQueuedNotifications;
use Illuminate\Queue\CallQueuedClosure;
use Illuminate\Support\Facades\Bus;

/** Dispatches chains of three: a plain job, one of the kind, and one whose note names the kind. */
class Chains extends Command
{
    protected $signature = 'interop:chains {--queue=second}';

    protected $description = 'Put a chain on the queue for every kind of job that can be its second; a JSON line for each';

    public function handle(): int
    {
        $queue = $this->option('queue');
        foreach ($this->kinds() as $kind => $make) {
            $chain = Bus::chain([new J\ChainMember(1, $kind), $make(), new J\ChainMember(3, $kind)]);
            $listed = new Node('shared');
            match (crc32($kind) % 4) {
                0 => $chain->onQueue($queue),
                1 => $chain->onQueue($queue)->onConnection('redis'),
                2 => $chain->onQueue($queue)->catch(function () use ($kind) {
                    Seen::record(['class' => 'catch', 'kind' => $kind]);
                }),
                3 => $chain->onQueue($queue)->onConnection('redis')->catch(function () use ($listed, $kind) {
                    Seen::record(['class' => 'catch', 'kind' => $kind, 'node' => $listed]);
                })->catch(function () use ($listed) {
                    Seen::record(['class' => 'catch', 'again' => $listed]);
                }),
            };
            $chain->dispatch();
            $this->output->writeln(Document::json(['kind' => $kind]), $this->output::OUTPUT_RAW);
        }

        return 0;
    }

    /** @return array<string, \Closure> */
    private function kinds(): array
    {
        // Jobs without Queueable cannot be in a chain, and text that is not UTF-8 not in a payload.
        $kinds = array_diff_key(Catalogue::recipes(), ['no-traits' => true, 'encrypted-bytes' => true]);

        return $kinds + [
            'delay-zero' => fn () => (new J\Plain)->delay(0),
            'delay-date' => fn () => (new J\Plain)->delay(CarbonImmutable::parse('2040-06-01 12:00:00', 'America/New_York')),
            'delay-past' => fn () => (new J\Plain)->delay(new \DateTime('2020-06-01 12:00:00')),
            'delay-interval' => fn () => (new J\Plain)->delay(new \DateInterval('P1Y2M3DT4H5M6S')),
            'delay-months' => fn () => (new J\Plain)->delay(new \DateInterval('P5M10D')),
            'delay-other-half' => fn () => (new J\Plain)->delay(new \DateInterval('P11M31DT30H')),
            'delay-inverted' => fn () => (new J\Plain)->delay(tap(new \DateInterval('P5M1D'), fn ($back) => $back->invert = 1)),
            'own-queue' => fn () => (new J\Plain)->onQueue('own'),
            'own-queue-native' => fn () => (new J\NoSerializesModels)->onQueue('own')->onConnection('redis'),
            'delayed-native' => fn () => (new J\NoSerializesModels)->delay(5),
            'shared-after' => fn () => new J\SharedAfter,
            'elsewhere' => fn () => new J\Elsewhere,
            'routed' => fn () => new J\Routed,
            'routed-child' => fn () => new J\RoutedChild,
            'returning' => fn () => new J\Returning(random_int(1, PHP_INT_MAX), 'here'),
            'unique-by-property' => fn () => new J\UniqueByProperty,
            'encrypted-by-property' => fn () => new J\EncryptedByProperty,
            'untellable' => fn () => new J\Untellable,
            'dated-backoff' => fn () => new J\DatedBackoff,
            'package' => fn () => new Convert('a.png'),
            'package-child' => fn () => new ConvertVideo('a.mp4'),
            'closure' => fn () => CallQueuedClosure::create(fn () => Seen::record(['class' => 'Closure'])),
            'listener' => fn () => new CallQueuedListener(CountReading::class, 'count', [new ArticleRead(1, 0.5)]),
            'listener-limits' => function () {
                $listener = new CallQueuedListener(CountReading::class, 'count', [new ArticleRead(1, 0.5)]);
                $listener->tries = 4;
                $listener->backoff = [1, 2];
                $listener->timeout = 9;
                $listener->shouldBeEncrypted = true;

                return $listener;
            },
            'notification' => fn () => new SendQueuedNotifications(
                User::findOrFail(1), tap(new InvoicePaid(17, 12.5), fn ($notification) => $notification->id = 'n'), ['mail']
            ),
            'mailable' => fn () => new SendQueuedMailable(new OrderConfirmation(User::findOrFail(1), 99)),
            'broadcast' => fn () => new BroadcastEvent(new ScoreChanged('Wisła', 3)),
            'command' => fn () => new QueuedCommand(['interop:note', ['text' => 'zażółć']]),
        ];
    }
}
