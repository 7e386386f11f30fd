<?php

/**
 * `php vectors.php`: what serialize() writes, one JSON line per value.
 *
 * Each builder returns the value; `$note` says what to see in its bytes.
 */

require __DIR__ . '/classes.php';
require __DIR__ . '/document.php';
require __DIR__ . '/lines.php';

/** Two places that share one PHP reference, as an array of both. */
function shared(mixed $value): array
{
    return [&$value, &$value];
}

/** `$before`, then "k" twice by reference: the number in the last `R:` is the slot of "k". */
function slot_of_k(array $before): array
{
    $k = 'k';
    $before[] = &$k;
    $before[] = &$k;

    return $before;
}

function scalars(): Generator
{
    yield 'null' => [null, 'null'];
    yield 'true' => [true, 'true'];
    yield 'false' => [false, 'false'];
    yield 'int0' => [0, 'int 0'];
    yield 'intneg' => [-7, 'int -7'];
    yield 'intmax' => [PHP_INT_MAX, 'largest int'];
    yield 'intmin' => [PHP_INT_MIN, 'smallest int'];
    yield 'f1.5' => [1.5, 'float 1.5'];
    yield 'f1' => [1.0, 'a whole float has no point'];
    yield 'f0.1' => [0.1, 'shortest digits'];
    yield 'f-0' => [-0.0, 'minus zero'];
    yield 'finf' => [INF, '+infinity'];
    yield 'f-inf' => [-INF, '-infinity'];
    yield 'fnan' => [NAN, 'not a number'];
    yield 'f1e100' => [1e100, '1e100'];
    yield 'f1e15' => [1e15, '1e15'];
    yield 'f1e16' => [1e16, 'largest power of ten in plain form'];
    yield 'f1e17' => [1e17, 'smallest power of ten in exponent form'];
    yield 'f1e25' => [1e25, 'exponent form'];
    yield 'f1e-5' => [1e-5, 'exponent form of a small one'];
    yield 'f1e-4' => [1e-4, 'smallest power of ten in plain form'];
    yield 'fpi' => [M_PI, '16 digits'];
    yield 'fmax' => [PHP_FLOAT_MAX, 'largest double'];
    yield 'feps' => [PHP_FLOAT_EPSILON, 'epsilon'];
    yield 'f2^63' => [PHP_INT_MAX + 1, 'what int overflow gives'];
    yield 'fden' => [5e-324, 'smallest denormal'];
    yield 'fp3' => [0.1 + 0.2, '17 digits'];
    yield 'x-f-exp-neg' => [-1.2345678901234568e+17, 'negative, exponent form'];
    yield 'x-fminnormal' => [PHP_FLOAT_MIN, 'smallest normal double'];
    yield 'x-f17digits' => [12345678901234567.0, '17 digits before the point, plain form'];
    yield 'sempty' => ['', 'empty string'];
    yield 'sabc' => ['abc', 'string'];
    yield 'squote' => ['a"b;', 'quote and semicolon are data'];
    yield 'sutf8' => ['héé', 'length in bytes'];
    yield 'sbin' => ["\x00\xff\xfe", 'binary'];
    yield 'snl' => ["a\nb", 'newline verbatim'];
    yield 'x-ssurrogate' => ["\xed\xa0\x80", 'an encoded surrogate is not UTF-8'];
    yield 'x-semoji' => ["\u{1f418}\u{2028}/", 'four-byte character, line separator, slash'];
}

function arrays(): Generator
{
    yield 'aempty' => [[], 'empty array'];
    yield 'alist' => [[1, 'b', null], 'list'];
    yield 'aassoc' => [['a' => 1, 'b' => [true]], 'map with a list'];
    yield 'akeys' => [['1' => 's', true => 't', '01' => 'y', '-5' => 'z', '-0' => 'w'], 'which keys become ints'];
    yield 'akeyf' => [[1.9 => 'a', null => 'b'], 'float key truncated, null key empty'];
    yield 'aord' => [[2 => 'c', 0 => 'a', 1 => 'b'], 'insertion order'];
    yield 'akeybig' => [['9223372036854775807' => 1, '9223372036854775808' => 2], 'largest int key'];
    yield 'akeymin' => [['-9223372036854775808' => 1], 'smallest int key'];
    yield 'x-akeybin' => [["\xff/" => 1, 'a/b~c' => 2, '' => 3], 'keys that are not UTF-8, or need care in a pointer'];
    yield 'x-agap' => [[0 => 'a', 2 => 'c'], 'a gap: not a list'];
    yield 'job6' => [
        (object) ['connection' => null, 'queue' => 'q1', 'delay' => 60, 'chained' => [serialize([1])]],
        'a serialized string inside a string',
    ];
}

function objects(): Generator
{
    yield 'oempty' => [new Emp(), 'no properties'];
    yield 'ostd' => [(object) ['a' => 1, 'b' => 'c'], 'dynamic properties'];
    yield 'ostdnum' => [(object) ['7' => 'x'], 'a numeric property name stays a string'];
    yield 'ovis' => [new P(), 'public, protected, private'];
    yield 'oinh' => [new C2(), 'private of parent and child with one name'];
    yield 'x-oinh-plain' => [new C3(), 'private of the parent that collides with nothing'];
    yield 'x-oinh-two' => [new Ch(), 'private of two ancestors with one name'];
    yield 'x-obinname' => [(object) ["\xff" => 1, '' => 2], 'property names: not UTF-8, and empty'];
    yield 'x-outf8class' => [new App\Jobs\Événement(), 'class and property names beyond ASCII'];
    yield 'x-omodels' => [new App\Jobs\WithModels(), 'mangled names from __serialize'];
    yield 'x-ojob' => [new App\Jobs\ProcessPodcast(), 'a job'];
    yield 'otyped' => [new Typed(), 'an uninitialised property is absent'];
    yield 'osleep' => [new Sl(), '__sleep: the listed names in that order'];
    yield 'oser' => [new Ser74(), '__serialize: keys verbatim, ints allowed'];
    yield 'cold' => [new OldSer(), 'C: with an opaque body'];
    yield 'cnest' => [new NestSer(), 'C: with a serialize() string as body'];
    yield 'x-cbin' => [new OldSer("\xff}"), 'C: with a binary body'];
    yield 'enumb' => [Suit::Hearts, 'backed enum: the case name, not the value'];
    yield 'enumu' => [[Unit::A, Unit::B], 'pure enum'];
    yield 'enum2' => [[Suit::Hearts, Suit::Hearts], 'one case twice'];
    yield 'x-enumns' => [App\Enums\Status::Live, 'enum in a namespace'];

    $model = new Illuminate\Contracts\Database\ModelIdentifier();
    [$model->class, $model->id, $model->relations, $model->connection] = ['App\Models\Podcast', 7, [], 'mysql'];
    yield 'x-model' => [$model, 'a model, without collection class'];
    $models = clone $model;
    [$models->id, $models->relations] = [[7, 8], ['user']];
    $models->collectionClass = 'App\Collections\Podcasts';
    yield 'x-models' => [$models, 'models, with collection class'];
}

function references(): Generator
{
    $o = new Emp();
    $s = 's';
    yield 'robj' => [[$o, $o], 'same object twice'];
    yield 'Rscal' => [shared('s'), 'two references to a scalar'];
    yield 'Robj' => [shared(new Emp()), 'two references to an object variable'];
    yield 'rcount' => [['x', 'y', $o, $o, 'z', $o], 'scalars take slots, r: takes one'];

    $self = new Node(1);
    $self->next = $self;
    yield 'rself' => [$self, 'an object that contains itself'];
    $a = new Node('a');
    $a->next = new Node('b');
    $a->next->next = $a;
    yield 'rcyc' => [$a, 'two objects in a cycle'];
    $list = [1];
    $list[1] = &$list;
    yield 'Rarr' => [$list, 'an array that contains itself'];
    $inner = [];
    $inner[0] = &$inner;
    $deep = ['a/b' => &$inner, 'again' => &$inner];
    yield 'x-Rarr-twice' => [$deep, 'an array that contains itself, seen from two places'];
    $n = new Node([1]);
    $n->v['~'] = &$n->v;
    yield 'x-Rprop' => [[$n, $n], 'a property that contains itself by reference'];

    $q = 'q';
    yield 'rRmix' => [[$o, $o, &$q, &$q, $o], 'r: takes a slot, R: does not'];
    yield 'rinC' => [[$o, new NestSer($o, $o), $o], 'numbering runs through a C: body'];
    yield 'rinKey' => [['k' => $o, 'l' => $o], 'keys take no slot'];
    yield 'rinSer' => [[$o, new SerR($o, $o), $o], 'numbering runs through __serialize'];
    yield 'CnumNested' => [slot_of_k([new NestSer(1, 2)]), 'a nested body takes slots'];
    yield 'CnumFlat' => [slot_of_k([new FlatSer()]), 'any other body takes none'];
    yield 'StrNested' => [[$o, new StrSer([$o, $o]), $o], 'a string made inside __serialize has its own numbering'];
    yield 'slots' => [[null, true, 1, 1.5, &$s, [], $o, &$s, $o], 'each value takes one slot'];
    $r = $o;
    yield 'refobj' => [['a' => &$r, 'b' => $o, 'c' => &$r], 'an object in a reference: r: by value, R: by reference'];
}

function builtins(): Generator
{
    $paris = new DateTimeZone('Europe/Paris');
    yield 'dt' => [new DateTime('2024-01-02 03:04:05.123456', $paris), 'zone by name'];
    yield 'dti' => [new DateTimeImmutable('2024-01-02 03:04:05 +02:00'), 'zone by offset'];
    yield 'dtabbr' => [new DateTime('2024-07-02 03:04:05 EDT'), 'zone by abbreviation'];
    yield 'x-dtfold' => [
        new DateTime('2024-10-27 02:30:00', $paris),
        'a time that happens twice, zone ahead of UTC: the second',
    ];
    yield 'x-dtfold-west' => [
        new DateTime('2024-11-03 01:30:00', new DateTimeZone('America/New_York')),
        'a time that happens twice, zone behind UTC: the first',
    ];
    yield 'x-dtz' => [new DateTime('2024-07-02 03:04:05Z'), 'abbreviation Z'];
    yield 'x-carbon' => [new Carbon\CarbonImmutable('2026-01-02 03:04:05.678901', $paris), 'Carbon'];
    yield 'tz' => [new DateTimeZone('UTC'), 'DateTimeZone'];
    yield 'di' => [new DateInterval('PT90S'), 'DateInterval, PHP 8.2 shape'];
    yield 'x-distr' => [DateInterval::createFromDateString('2 days'), 'DateInterval from a text'];
    yield 'ao' => [new ArrayObject(['a' => 1]), 'ArrayObject'];
    $storage = new SplObjectStorage();
    $storage[new Emp()] = 1;
    yield 'sos' => [$storage, 'SplObjectStorage'];
    yield 'clos_like' => [[new ArrayIterator([1])], 'ArrayIterator'];
}

function slots(): Generator
{
    $o = new Emp();
    yield 'slot-array' => [slot_of_k([['p' => 1, 'q' => [2]]]), '1 outer, 2 array, 3 int, 4 array, 5 int, 6 "k"'];
    yield 'slot-object' => [slot_of_k([new Ty()]), '1, 2 object, 3 its one written property, 4 "k"'];
    yield 'slot-serialize' => [slot_of_k([$o, new SerR($o, $o)]), '1, 2 Emp, 3 SerR, 4 and 5 the two r:, 6 "k"'];
    yield 'slot-date' => [slot_of_k([new DateTime('2024-01-01')]), '1, 2 DateTime, 3 to 5 its values, 6 "k"'];
    yield 'slot-nested-body' => [slot_of_k([new NestSer(1, 2)]), '1, 2 custom, 3 to 5 in its body, 6 "k"'];
    yield 'slot-flat-body' => [slot_of_k([new Flat()]), '1, 2 custom, 3 "k"'];
    yield 'slot-enum' => [slot_of_k([Suit::Hearts]), '1, 2 enum, 3 "k"'];
    yield 'slot-r' => [slot_of_k([$o, $o]), '1, 2 Emp, 3 the r:, 4 "k"'];
    yield 'slot-R' => [slot_of_k(shared('x')), '1, 2 "x", the R: takes none, 3 "k"'];
    $k = 'k';
    yield 'slot-keys' => [['a' => &$k, 'b' => &$k], '1, 2 "k": keys take none'];
}

foreach ([scalars(), arrays(), objects(), references(), builtins(), slots()] as $vectors) {
    foreach ($vectors as $id => [$value, $note]) {
        $php = serialize($value);
        $read = unserialize($php);
        if (serialize($read) !== $php) {
            fail("$id does not survive a round trip: $php");
        }
        line(['id' => $id, 'php' => base64_encode($php), 'json' => Document::of($read), 'note' => $note]);
    }
}
