<?php

/** Random PHP values of everything a queue payload can hold. The same seed gives the same values. */
final class RandomValues
{
    private const KEYS = ['a', 'b', 'id', 'name', '01', '-0', '+1', ' 1', '1.0', '1e2', '', 'a/b', '~', 'ключ',
        "\xff\x00", "nul\0", '9223372036854775808', '7', '-5', '9223372036854775807', '-9223372036854775808'];

    private const NAMES = ['a', 'b', 'id', 'name', '7', '-5', '', 'a/b', '~0', 'ключ', "\xfe", 'with space'];

    private const WORDS = ['', 'a', 'abc', 'App\Models\Podcast', 'a:0:{}', 'i:5;', '"};', "line\nline", "tab\t", "nul\0nul",
        'zażółć', '日本語', "\u{1f418}", "\u{2028}", '$class', '{"a":1}', "\xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80"];

    private const ZONES = ['UTC', 'Europe/Warsaw', 'Europe/Paris', 'America/New_York', 'Asia/Kolkata', 'Asia/Tokyo',
        'Australia/Sydney', 'America/Sao_Paulo', 'America/Los_Angeles', 'Pacific/Auckland', '+02:00', '-03:30', '+00:00',
        '+14:00', 'EST', 'EDT', 'CET', 'CEST', 'PST', 'PDT', 'Z'];

    private const DATES = [DateTime::class, DateTimeImmutable::class, Carbon\Carbon::class,
        Carbon\CarbonImmutable::class, Illuminate\Support\Carbon::class];

    /** Classes filled property by property: name => [declaring class => properties]. */
    private const PLAIN = [
        P::class => [P::class => ['pub', 'pro', 'pri']],
        C2::class => [P::class => ['pub', 'pro', 'pri'], C2::class => ['pri', 'own']],
        C3::class => [P::class => ['pub', 'pri'], C3::class => ['more']],
        Sl::class => [Sl::class => ['a', 'b', 'c', 'skipped']],
        Node::class => [Node::class => ['next', 'v']],
        Dyn::class => [Dyn::class => ['declared', 'hidden', 'dynamic', 'другой']],
        App\Jobs\NS::class => [App\Jobs\NS::class => ['p', 'q', 'r']],
        App\Jobs\ProcessPodcast::class => [App\Jobs\ProcessPodcast::class => ['podcast', 'tags', 'attempt', 'chained']],
        App\Jobs\WithModels::class => [App\Jobs\WithModels::class => ['open', 'guarded', 'own']],
        App\Jobs\Événement::class => [App\Jobs\Événement::class => ['größe', 'été']],
    ];

    /** @var list<object> objects that may be used again, also while they are still being filled */
    private array $objects = [];

    /** @var list<array{mixed}> boxes, each with one PHP reference that may be used again */
    private array $references = [];

    /** How many more values the current one may hold. */
    private int $budget = 0;

    /** @var array<string, Closure> by declaring class */
    private array $setters = [];

    public function __construct(int $seed)
    {
        mt_srand($seed);
    }

    /** The next value: some are scalars, the others nest up to eight levels. */
    public function next(): mixed
    {
        $this->objects = [];
        $this->references = [];
        $this->budget = mt_rand(1, 80);

        return match (true) {
            $this->chance(15) => $this->scalar(),
            $this->chance(50) => $this->array(8),
            default => $this->object(8),
        };
    }

    private function chance(int $percent): bool
    {
        return mt_rand(1, 100) <= $percent;
    }

    private function pick(array $from): mixed
    {
        return $from[mt_rand(0, count($from) - 1)];
    }

    private function value(int $depth): mixed
    {
        if (--$this->budget <= 0 || $depth <= 0 || $this->chance(45)) {
            return $this->scalar();
        }

        return $this->chance(50) ? $this->array($depth - 1) : $this->object($depth - 1);
    }

    private function scalar(): mixed
    {
        return match (mt_rand(0, 9)) {
            0 => null,
            1 => $this->chance(50),
            2, 3 => $this->int(),
            4, 5 => $this->float(),
            default => $this->string(),
        };
    }

    private function int(): int
    {
        return match (mt_rand(0, 4)) {
            0 => mt_rand(-9, 9),
            1 => mt_rand(-100000, 100000),
            2 => $this->pick([0, 1, -1, PHP_INT_MAX, PHP_INT_MIN, PHP_INT_MAX - 1, 1 << 53, (1 << 53) + 1, 1 << 32]),
            default => $this->bits() >> mt_rand(0, 63),
        };
    }

    private function bits(): int
    {
        return mt_rand(0, 0xffff) << 48 | mt_rand(0, 0xffff) << 32 | mt_rand(0, 0xffff) << 16 | mt_rand(0, 0xffff);
    }

    private function float(): float
    {
        return match (mt_rand(0, 7)) {
            0 => $this->pick([0.0, -0.0, 1.0, 0.1, INF, -INF, NAN, 5e-324, PHP_FLOAT_MAX, PHP_FLOAT_MIN, 2.0 ** 63]),
            1 => (float) mt_rand(-1000, 1000),
            2 => mt_rand(-100000, 100000) / 100,
            3 => mt_rand(1, 9) * 10.0 ** mt_rand(-30, 30),
            4 => mt_rand(0, 999999) * 10.0 ** mt_rand(-12, 20) * ($this->chance(50) ? 1 : -1),
            5 => (float) $this->bits(),
            default => unpack('E', pack('J', $this->bits()))[1],
        };
    }

    private function string(): string
    {
        return match (mt_rand(0, 4)) {
            0, 1 => $this->pick(self::WORDS),
            2 => $this->bytes(mt_rand(0, 12)),
            3 => implode(' ', array_map(fn () => $this->pick(self::WORDS), range(1, mt_rand(1, 4)))),
            4 => dechex($this->bits()),
        };
    }

    private function bytes(int $length): string
    {
        $bytes = '';
        while (strlen($bytes) < $length) {
            $bytes .= chr(mt_rand(0, 255));
        }

        return $bytes;
    }

    private function array(int $depth): array
    {
        $array = [];
        $keys = mt_rand(0, 5);
        for ($i = 0, $n = mt_rand(0, 6); $i < $n; $i++) {
            $key = match (true) {
                $keys < 3 => $i,
                $keys === 3 => $this->pick(self::KEYS),
                $keys === 4 => mt_rand(-3, 9),
                default => $this->chance(50) ? $this->pick(self::KEYS) : mt_rand(-3, 99),
            };
            $this->put($array, $key, $depth);
        }
        if ($array !== [] && $this->chance(4)) {
            unset($array[array_rand($array)]);
        }

        return $array;
    }

    /** Puts a value, an object seen before, or a reference into an array. */
    private function put(array &$array, int|string $key, int $depth): void
    {
        if ($this->references !== [] && $this->chance(12)) {
            $box = $this->pick($this->references);
            $array[$key] = &$box[0];

            return;
        }
        if ($this->chance(2)) {
            $cycle = ['before' => $this->scalar()];
            $this->put($cycle, 'first', min($depth, 2) - 1);
            $cycle[$this->pick(self::KEYS)] = &$cycle;
            $array[$key] = &$cycle;

            return;
        }
        unset($array[$key]);
        $array[$key] = $this->value($depth);
        if ($this->chance(12)) {
            $this->references[] = [&$array[$key]];
        }
    }

    private function object(int $depth): object
    {
        if ($this->objects !== [] && $this->chance(25)) {
            return $this->pick($this->objects);
        }
        $object = match (mt_rand(0, 13)) {
            0, 1, 2, 3 => $this->plain($depth),
            4, 5 => $this->standard($depth),
            6 => $this->typed(),
            7 => $this->date(),
            8 => $this->builtin($depth),
            9 => $this->custom($depth),
            10 => $this->pick([Suit::Hearts, Suit::Spades, Unit::A, Unit::B, App\Enums\Status::Live]),
            11 => $this->model(),
            12 => $this->pairs($depth),
            13 => $this->pick([new Emp(), new StrSer($this->scalar()), new FlatSer($this->body())]),
        };
        $this->objects[] = $object;

        return $object;
    }

    private function plain(int $depth): object
    {
        $class = $this->pick(array_keys(self::PLAIN));
        $this->objects[] = $object = new $class();
        foreach (self::PLAIN[$class] as $declaring => $names) {
            $this->setters[$declaring] ??= Closure::bind(function (object $object, array $values): void {
                foreach (array_keys($values) as $name) {
                    $object->$name = &$values[$name];
                }
            }, null, $declaring);
            $values = [];
            foreach ($names as $name) {
                if ($this->chance(70)) {
                    $this->put($values, $name, $depth);
                }
            }
            $this->setters[$declaring]($object, $values);
        }

        return $object;
    }

    private function standard(int $depth): stdClass
    {
        $this->objects[] = $object = new stdClass();
        $values = [];
        for ($n = mt_rand(0, 4); $n > 0; $n--) {
            $this->put($values, $this->pick(self::NAMES), $depth);
        }
        foreach (array_keys($values) as $name) {
            $object->{$name} = &$values[$name];
        }

        return $object;
    }

    private function typed(): Typed
    {
        $object = new Typed();
        if ($this->chance(50)) {
            $object->a = $this->int();
        }
        $object->b = $this->chance(50) ? $this->string() : null;

        return $object;
    }

    /** The hour keeps away from the times that a change of clocks skips or repeats; the vectors have those. */
    private function date(): DateTimeInterface
    {
        $class = $this->pick(self::DATES);
        $text = sprintf('%04d-%02d-%02d %02d:%02d:%02d.%06d', mt_rand(1990, 2037), mt_rand(1, 12), mt_rand(1, 28),
            mt_rand(4, 22), mt_rand(0, 59), mt_rand(0, 59), $this->chance(50) ? 0 : mt_rand(0, 999999));

        return new $class($text, new DateTimeZone($this->pick(self::ZONES)));
    }

    private function builtin(int $depth): object
    {
        switch (mt_rand(0, 5)) {
            case 0:
                return new ArrayIterator($this->array($depth));
            case 1:
                return new DateTimeZone($this->pick(self::ZONES));
            case 2:
                $interval = new DateInterval('P' . mt_rand(0, 9) . 'DT' . mt_rand(0, 99) . 'S');
                $interval->f = mt_rand(0, 999999) / 1e6;

                return $interval;
            case 3:
                $storage = new SplObjectStorage();
                for ($n = mt_rand(0, 2); $n > 0; $n--) {
                    $storage->attach($this->object($depth - 1), $this->value($depth));
                }

                return $storage;
            default:
                return new ArrayObject($this->array($depth), mt_rand(0, 3));
        }
    }

    /** A body that cannot be mistaken for serialize() output. */
    private function body(): string
    {
        return '@' . $this->bytes(mt_rand(0, 9));
    }

    private function custom(int $depth): Serializable
    {
        return $this->chance(40) ? new OldSer($this->body()) : new NestSer($this->value($depth), $this->value($depth));
    }

    private function model(): object
    {
        $model = new Illuminate\Contracts\Database\ModelIdentifier();
        $model->class = 'App\Models\Podcast';
        $model->id = $this->pick([7, 'uuid-1', [1, 2, 3], []]);
        $model->relations = $this->pick([[], ['user', 'user.team']]);
        $model->connection = $this->pick(['mysql', null]);
        $model->collectionClass = $this->pick([null, 'App\Collections\Podcasts']);

        return $model;
    }

    /** An object whose pairs come from `__serialize`. */
    private function pairs(int $depth): object
    {
        return $this->chance(50)
            ? new Ser74($this->array($depth))
            : new SerR($this->value($depth), $this->value($depth));
    }
}
