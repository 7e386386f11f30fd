<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

/** Jobs load it with the model's own query. */
class Restored extends Model
{
    public function newQueryForRestoration($ids)
    {
        return parent::newQueryForRestoration($ids)->where('deleted', 0);
    }
}
